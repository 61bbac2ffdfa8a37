"""Requests that the page sends to a model: through the same routes and codecs, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from modelserver.engine.ids import accept_request_id
from modelserver.errors import ResourceNotFound
from modelserver.ext.console.pages import DATA_HEADERS
from modelserver.extension import Endpoints
from modelserver.surface.http.exchange import Exchange, Target

if TYPE_CHECKING:
    from starlette.requests import Request


# Bytes of an answer in parts that may wait for the page.
MOST_UNSENT: Final = 6_553_500
_PREFIX: Final = b"/console/try"
# Headers of the response that the page gets; a handler may set others, which must not act on the console.
_PASSED_ON: Final = frozenset({b"server-timing", b"x-batch-id", b"x-batch-size"})
# Headers of the page's request that are not the model's business.
_HIDDEN: Final = frozenset({b"authorization", b"cookie"})
_UNKNOWN_TYPE: Final = "application/octet-stream"


async def answer_try(request: Request, endpoints: Endpoints) -> Response:
    """The model's answer to the request that follows ``/console/try``.

    It has the header ``x-console-try``, unlike an error of the console itself. Raises ResourceNotFound if the
    rest is no path of inference.
    """
    path, query = request.scope["raw_path"].partition(_PREFIX)[2], request.scope["query_string"]
    hot = endpoints.unwatched
    target = hot.find(path + b"?" + query if query else path)
    if target is None:
        raise ResourceNotFound
    exchange = TriedExchange(target, request, await request.body())
    hot.serve(exchange)
    try:
        is_there = await is_there_for(exchange.begins, request)
    finally:
        if not exchange.begins.done():
            exchange.leave()
    if not is_there:
        return Response(status_code=499)
    status, headers = exchange.begins.result()
    headers = {**DATA_HEADERS, **headers, "x-console-try": "1"}
    if status in (204, 304):
        # These have no body, whatever the handler returned.
        return Response(None, status, headers)
    return StreamingResponse(exchange.parts(), status, headers)


async def is_there_for(outcome: asyncio.Future[Any], request: Request) -> bool:
    """Waits for the outcome while the client is there; False if it left before.

    The body of the request has been read.
    """
    # After the body, the only message is that the client has left.
    leaving = asyncio.ensure_future(request.receive())
    try:
        outcomes: set[asyncio.Future[Any]] = {outcome, leaving}
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    return outcome.done()


class TriedExchange(Exchange):
    """The exchange of one try; ``begins`` gets the status and the headers of the response."""

    __slots__ = ("_parts", "_unsent", "begins")

    def __init__(self, target: Target, request: Request, body: bytes) -> None:
        super().__init__(target, b"POST", "1.1", body)
        self._headers = [(name, value) for name, value in request.scope["headers"] if name not in _HIDDEN]
        headers = dict(self._headers)
        self.content_type = headers.get(b"content-type", b"").decode("latin-1")
        self.request_id = accept_request_id(headers.get(b"x-request-id", b""))
        self.begins: asyncio.Future[tuple[int, dict[str, str]]] = asyncio.get_running_loop().create_future()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unsent = 0

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._headers

    def packed_headers(self) -> bytes:
        return msgspec.msgpack.encode(self._headers)

    async def parts(self) -> AsyncIterator[bytes]:
        """The body."""
        try:
            while (part := await self._parts.get()) is not None:
                self._unsent -= len(part)
                yield part
        finally:
            self.leave()

    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        if not self.answered:
            self._begin(status, content_type, extra)
            self._put(body)
            self._put(None)

    def begin(self, status: int, content_type: str = "", extra: bytes = b"", phrase: str = "") -> None:
        if not self.answered:
            self._begin(status, content_type, extra)
            self.sent_status = status

    def send(self, part: bytes) -> None:
        if not self.sent_status or not part or self.disconnected:
            return
        if self._unsent > MOST_UNSENT:
            self._put(None)
            self.leave()
        else:
            self._put(part)

    def end(self, complete: bool = True) -> None:
        if self.sent_status:
            self._note_end(complete)
            if not complete:
                self._put(b"\n[The answer broke off here.]")
            self._put(None)

    def unsent(self) -> int:
        return self._unsent

    def _begin(self, status: int, content_type: str, extra: bytes) -> None:
        self.answered = True
        if self.disconnected:
            return
        lines = (line.partition(b": ") for line in extra.split(b"\r\n"))
        headers = {name.decode(): value.decode("latin-1") for name, _, value in lines if name in _PASSED_ON}
        # A handler's type with a line break could not be sent.
        known = content_type if content_type.isprintable() else ""
        self.begins.set_result((status, {**headers, "content-type": known or _UNKNOWN_TYPE}))

    def _put(self, part: bytes | None) -> None:
        self._unsent += len(part or b"")
        self._parts.put_nowait(part)
