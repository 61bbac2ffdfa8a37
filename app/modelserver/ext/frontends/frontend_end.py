"""A front end's side of the link: it sends requests to the server and writes the answers.

Requests on hot routes are sent whole and answered by the arguments of one :meth:`Exchange.reply` (or of
``begin``, ``send`` and ``end``). For all others the server runs its ASGI application, and ASGI messages are
sent. So every answer has the bytes that a single process would write.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.ext.frontends import messages
from modelserver.ext.frontends.link import Link
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.inference.routes import target_finder

_encode_headers = msgspec.msgpack.Encoder().encode
# Bytes that clients must have taken before the server learns of it, and seconds between checks of that.
_UNREPORTED = 1 << 16
_REPORT_SECONDS = 0.01
# The parts of the ASGI scope that are sent, in the order of the message's fields.
_OF_SCOPE = messages.RequestHead.__struct_fields__[1:]


class Forwarder:
    """The endpoint of a front end: its hot routes, which ``find`` finds, and its ASGI application.

    ``on_freed`` is called after an answer of the application, with its bytes.
    """

    def __init__(self, link: Link[messages.ToFrontend]) -> None:
        self.on_freed: Callable[[int], None] = lambda _: None
        self.find = target_finder()
        self._send = link.send
        self._numbers = itertools.count()
        self._exchanges: dict[int, Exchange] = {}
        self._streams: dict[int, _Stream] = {}
        self._is_reporting = False
        self._calls: dict[int, _Call] = {}
        self._relaying = False
        self._handlers: dict[type, Callable[[Any, bytes], None]] = {
            messages.WholeReply: self._answer,
            messages.Begin: self._begin,
            messages.ReplyPart: self._part,
            messages.End: self._answer,
            messages.More: self._to_call,
            messages.ResponseHead: self._to_call,
            messages.Content: self._to_call,
            messages.Done: self._to_call,
        }

    # -- hot routes

    def serve(self, exchange: Exchange) -> None:
        loop_watch.request = exchange
        number = next(self._numbers)
        self._exchanges[number] = exchange
        exchange.on_disconnect = lambda: self._gone(number)
        body = exchange.body
        self._send(
            messages.Ask(
                number,
                len(body),
                exchange.target.text.encode("latin-1"),
                exchange.method,
                exchange.http_version,
                _encode_headers(exchange.headers),
                exchange.content_type,
                exchange.encoding,
                exchange.deadline_ms,
                exchange.request_id,
                exchange.has_traceparent,
            ),
            body,
        )
        exchange.body = b""

    def exchange(self, number: int) -> Exchange | None:
        """The exchange of a request that is not answered yet."""
        return self._exchanges.get(number)

    def _gone(self, number: int) -> None:
        self._streams.pop(number, None)
        if self._exchanges.pop(number, None) is not None:
            self._send(messages.Gone(number))

    # -- everything else

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """The ASGI application, which runs in the server."""
        number = next(self._numbers)
        loop_watch.request = f"{scope['method']} to the application"
        call = self._calls[number] = _Call(number, self._send, receive)
        self._send(messages.RequestHead(number, *(scope[name] for name in _OF_SCOPE)))
        try:
            while (message := await call.outgoing.get()) is not None:
                await send(message)
                call.sent(len(message.get("body", b"")))
        except BaseException:
            self._send(messages.Gone(number))
            raise
        finally:
            call.end()
            del self._calls[number]
            self.on_freed(call.taken)

    def _to_call(self, message: messages.ToCall, body: bytes) -> None:
        call = self._calls.get(message.number)
        if call is not None:
            call.take(message, body)

    # -- from the server

    def handle(self, message: messages.ToFrontend, body: bytes) -> bool:
        """Handles a message of the server; False if it is not about a request."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return False
        handler(message, body)
        return True

    def _answer(self, message: messages.WholeReply | messages.End, body: bytes) -> None:
        """A whole answer, or the end of one in parts."""
        self._streams.pop(message.number, None)
        exchange = self._exchanges.pop(message.number, None)
        if exchange is None:
            return
        self._relaying = True
        try:
            if isinstance(message, messages.WholeReply):
                exchange.reply(message.status, body, message.content_type, message.extra, message.phrase)
            else:
                exchange.end(message.complete)
        finally:
            self._relaying = False

    def _begin(self, message: messages.Begin, _: bytes) -> None:
        exchange = self._exchanges.get(message.number)
        if exchange is not None:
            self._streams[message.number] = _Stream(exchange)
            exchange.begin(message.status, message.content_type, message.extra, message.phrase)

    def _part(self, message: messages.ReplyPart, body: bytes) -> None:
        stream = self._streams.get(message.number)
        if stream is None:
            return
        stream.send(body)
        if not self._is_reporting and stream.total - stream.reported >= _UNREPORTED:
            self._is_reporting = True
            asyncio.get_running_loop().call_soon(self._report_taken)

    def _report_taken(self) -> None:
        """Reports how much clients have taken, and does so again soon while there is more."""
        for number, stream in self._streams.items():
            taken = stream.taken
            if taken - stream.reported >= _UNREPORTED:
                stream.reported = taken
                self._send(messages.Taken(number, taken))
        streams = self._streams.values()
        self._is_reporting = any(each.total - each.reported >= _UNREPORTED for each in streams)
        if self._is_reporting:
            asyncio.get_running_loop().call_later(_REPORT_SECONDS, self._report_taken)

    def count(self, status: int, _target: str = "") -> None:
        """Reports an answer that this front end gave itself."""
        if not self._relaying:
            self._send(messages.RefusedByFrontend(status))


class _Stream:
    """An answer in parts: bytes received (``total``), and bytes reported as taken (``reported``)."""

    __slots__ = ("_exchange", "reported", "total")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.total = self.reported = 0

    def send(self, part: bytes) -> None:
        self.total += len(part)
        self._exchange.send(part)

    @property
    def taken(self) -> int:
        return self.total - self._exchange.unsent()


class _Call:
    """A request that the application in the server answers."""

    def __init__(self, number: int, send: Callable[..., None], receive: Callable[[], Awaitable[Any]]) -> None:
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self._number = number
        self._send = send
        self._receive = receive
        self._pulling: asyncio.Task[None] | None = None
        # Bytes of the answer that the client has taken, and how many of them the server knows of.
        self.taken = self._reported = 0

    def sent(self, size: int) -> None:
        """So many bytes of the answer were taken: the server may have to wait for that."""
        self.taken += size
        if self.taken - self._reported >= _UNREPORTED:
            self._reported = self.taken
            self._send(messages.Taken(self._number, self.taken))

    def take(self, message: messages.ToCall, body: bytes) -> None:
        if isinstance(message, messages.More):
            self._pulling = asyncio.get_running_loop().create_task(self._pull())
        elif isinstance(message, messages.ResponseHead):
            self.outgoing.put_nowait(
                {"type": "http.response.start", "status": message.status, "headers": message.headers}
            )
        elif isinstance(message, messages.Content):
            self.outgoing.put_nowait({"type": "http.response.body", "body": body, "more_body": message.more})
        else:
            self.outgoing.put_nowait(None)

    def end(self) -> None:
        if self._pulling is not None:
            self._pulling.cancel()

    async def _pull(self) -> None:
        event = await self._receive()
        left = event["type"] == "http.disconnect"
        body = event.get("body", b"")
        self._send(messages.Piece(self._number, len(body), event.get("more_body", False), left), body)
