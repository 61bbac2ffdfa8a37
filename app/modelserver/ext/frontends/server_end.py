"""The server's side of the link to a front end: its requests and their answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from modelserver.errors import InternalError, ResourceNotFound
from modelserver.ext.frontends import messages
from modelserver.ext.frontends.link import Link
from modelserver.extension import Endpoints
from modelserver.surface.http.exchange import Exchange, Target

Application = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

_log = logging.getLogger("modelserver.frontend")

# If more bytes wait for a front end when a part of an answer is sent, it is replaced.
MAX_UNSENT = 1 << 28
# Bytes of one answer of the application that its client has not taken, as far as known here, after which
# the application waits; more than what front ends leave unreported.
MOST_UNTAKEN = 1 << 18

_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
_GONE = {"type": "http.disconnect"}
_UNREAD = Target()


class ServerEnd:
    """Answers the requests of one front end.

    Args:
        endpoints: what answers requests on hot routes, and counts answers and stalls.
        app: the ASGI application of the address, for all other requests; it counts its own answers.
    """

    def __init__(self, endpoints: Endpoints, app: Application) -> None:
        loop, metrics = asyncio.get_running_loop(), endpoints.services.metrics
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.link: Link[messages.FromFrontend] = Link(
            messages.from_frontend_decoder, self._on_message, self._on_lost
        )
        self.count: Callable[[int], None] = metrics.response
        # If more bytes wait for the front end, a large answer becomes a refusal.
        self.outgoing = endpoints.services.outgoing
        self.exchanges: dict[int, RemoteExchange] = {}
        self._hot = endpoints.hot
        self._app = app
        self._calls: dict[int, _Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[type, Callable[[Any, bytes], None]] = {
            messages.Gone: self._gone,
            messages.Taken: self._taken,
            messages.RequestHead: self._call,
            messages.Piece: self._piece,
            messages.RefusedByFrontend: lambda message, _: metrics.response(message.status),
            messages.Stalled: lambda message, _: metrics.stalled(message.seconds),
            messages.LogRecord: lambda message, _: _write_record(message),
            messages.Ready: lambda *_: _settle(self.ready),
            messages.StoppedListening: lambda *_: _settle(self.closed),
        }

    @property
    def waiting(self) -> int:
        """The requests that are not answered."""
        return len(self.exchanges) + len(self._calls)

    def _on_message(self, message: messages.FromFrontend, body: bytes) -> None:
        if type(message) is messages.Ask:
            self._ask(message, body)
        else:
            self._handlers[type(message)](message, body)

    def _ask(self, ask: messages.Ask, body: bytes) -> None:
        exchange = self.exchanges[ask.number] = RemoteExchange(self, ask, body)
        try:
            target = self._hot.find(ask.url)
            if target is None:
                exchange.fail(ResourceNotFound())
                return
            exchange.target = target
            self._hot.serve(exchange)
        except Exception:  # noqa: BLE001 - the other requests of the turn must still be served
            _log.exception("Failure while receiving a request")
            exchange.refuse(InternalError())

    def _gone(self, message: messages.Gone, _: bytes) -> None:
        exchange = self.exchanges.pop(message.number, None)
        if exchange is not None:
            exchange.leave()
        call = self._calls.get(message.number)
        if call is not None:
            call.leave()

    def _taken(self, message: messages.Taken, _: bytes) -> None:
        exchange = self.exchanges.get(message.number)
        if exchange is not None:
            exchange.taken = message.total
        call = self._calls.get(message.number)
        if call is not None:
            call.took(message.total)

    def _call(self, message: messages.RequestHead, _: bytes) -> None:
        call = self._calls[message.number] = _Call(message.number, self.link)
        task = asyncio.get_running_loop().create_task(self._run(message, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, message: messages.RequestHead, call: _Call) -> None:
        try:
            await self._app(_scope(message), call.receive, call.send)
        finally:
            self._calls.pop(message.number, None)
            self.link.send(messages.Done(message.number))

    def _piece(self, message: messages.Piece, body: bytes) -> None:
        call = self._calls.get(message.number)
        if call is None:
            return
        if message.left:
            call.leave()
        else:
            call.put({"type": "http.request", "body": body, "more_body": message.more})

    def _on_lost(self) -> None:
        """The front end is gone, with all its clients."""
        _settle(self.lost)
        for future in (self.ready, self.closed):
            future.cancel()
        exchanges, self.exchanges = self.exchanges, {}
        for exchange in exchanges.values():
            exchange.leave()
        for call in self._calls.values():
            call.leave()


class RemoteExchange(Exchange):
    """A request that a front end received; the exchange there sends what is answered here."""

    __slots__ = ("_end", "_number", "_packed", "_sent", "taken")

    def __init__(self, end: ServerEnd, ask: messages.Ask, body: bytes) -> None:
        super().__init__(_UNREAD, ask.method, ask.version, body)
        self._end = end
        self._number = ask.number
        self._packed = ask.headers
        self._headers: list[tuple[bytes, bytes]] = []
        self.content_type = ask.content_type
        self.encoding = ask.encoding
        self.deadline_ms = ask.deadline_ms
        self.request_id = ask.request_id
        self.has_traceparent = ask.has_traceparent
        # Bytes of parts, and how many of them the client has taken.
        self._sent = self.taken = 0

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if not self._headers:
            self._headers = _decode_headers(self._packed)
        return self._headers

    def packed_headers(self) -> bytes:
        return self._packed

    def replace_header(self, name: bytes, value: bytes) -> None:
        super().replace_header(name, value)
        self._packed = _encode_headers(self._headers)

    def note_trace(self, trace_id: str, note: Callable[[str, str], None]) -> None:
        # The front end has the access log.
        if not self.disconnected:
            self._end.link.send(messages.Traced(self._number, trace_id))

    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        if self.answered:
            return
        end = self._end
        if len(body) >= messages.LARGE and end.link.unsent > end.outgoing.limit:
            self.refuse(end.outgoing.refusal())
            return
        self.answered = True
        self.on_disconnect = None
        if self.watcher is not None:
            watcher, self.watcher = self.watcher, None
            watcher.replied(status, body, content_type, extra)
        end.exchanges.pop(self._number, None)
        end.count(status)
        if not self.disconnected:
            end.link.send(
                messages.WholeReply(self._number, len(body), status, content_type, extra, phrase), body
            )

    def begin(self, status: int, content_type: str = "", extra: bytes = b"", phrase: str = "") -> None:
        if self.answered:
            return
        self._note_begin(status, content_type, extra)
        self._end.link.send(messages.Begin(self._number, status, content_type, extra, phrase))

    def send(self, part: bytes) -> None:
        if self.sent_status and part and not self.disconnected:
            if self.watcher is not None:
                self.watcher.part(part)
            link = self._end.link
            if link.unsent > MAX_UNSENT:
                # Slow clients are the front end's to disconnect; here the front end itself does not read.
                _log.error("A front end does not read what it is sent; it is replaced")
                link.abort()
            else:
                self._sent += len(part)
                link.send(messages.ReplyPart(self._number, len(part)), part)

    def unsent(self) -> int:
        return self._sent - self.taken

    def end(self, complete: bool = True) -> None:
        if not self.sent_status:
            return
        status = self.sent_status
        self._note_end(complete)
        self._end.exchanges.pop(self._number, None)
        self._end.count(status if complete else 500)
        self._end.link.send(messages.End(self._number, complete))


class _Call:
    """A front end's request to the application in this process."""

    def __init__(self, number: int, link: Link[messages.FromFrontend]) -> None:
        self._number = number
        self._link = link
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._has_requested = self._has_left = False
        # Bytes of the answer, and how many of them the client has taken.
        self._sent = self._taken = 0
        self._news = asyncio.Event()

    def put(self, event: dict[str, Any]) -> None:
        """Adds a part of the body, or the client's disconnect."""
        self._has_requested = False
        self._events.put_nowait(event)

    def took(self, total: int) -> None:
        """The client has taken so many bytes of the answer."""
        self._taken = total
        self._news.set()

    def leave(self) -> None:
        """The client has left: nothing more is sent to it."""
        self._has_left = True
        self._news.set()
        self.put(_GONE)

    async def receive(self) -> dict[str, Any]:
        if not self._has_requested and self._events.empty():
            self._has_requested = True
            self._link.send(messages.More(self._number))
        return await self._events.get()

    async def send(self, event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            self._link.send(
                messages.ResponseHead(self._number, event["status"], list(event.get("headers", ())))
            )
        else:
            while self._sent - self._taken > MOST_UNTAKEN and not self._has_left:
                self._news.clear()
                await self._news.wait()
            if self._has_left:
                return
            body = bytes(event.get("body", b""))
            self._sent += len(body)
            self._link.send(messages.Content(self._number, len(body), event.get("more_body", False)), body)


def _scope(message: messages.RequestHead) -> dict[str, Any]:
    scope = msgspec.structs.asdict(message)
    del scope["number"]
    return {
        **scope,
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "root_path": "",
        "state": {},
    }


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _write_record(message: messages.LogRecord) -> None:
    """Logs a front end's record, with its time."""
    logger = logging.getLogger(message.logger)
    if not logger.isEnabledFor(message.level):
        return
    extra: dict[str, Any] = {"multiline": True, "request_ids": message.request_ids}
    if message.trace_id:
        extra["trace_id"] = message.trace_id
    record = logger.makeRecord(
        message.logger, message.level, __file__, 0, "%s", (message.text,), None, extra=extra
    )
    record.created = message.created
    record.msecs = float(int(message.created * 1000) % 1000)
    logger.handle(record)
