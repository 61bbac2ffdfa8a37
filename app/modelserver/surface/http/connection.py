"""The requests of a connection in their order, their responses, and its end.

* A response that closes the connection reaches its client whole, also while the client still sends.
* Clients that send a head or a body too slowly, do not read their response, or keep an idle connection for
  too long are disconnected by one timer for all connections (F15), instead of one per request.
* A request's memory is freed when it ends, however it ends, not when the garbage collector runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from modelserver.engine.telemetry.access import OnResponse
from modelserver.errors import ModelServerError, PayloadTooLarge
from modelserver.surface.auth.guard import Guard
from modelserver.surface.auth.verifier import Verifier
from modelserver.surface.http.answers import form_of
from modelserver.surface.http.asgi_cycle import CONTINUE, AsgiCycle, prepared
from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.cors import Cors, Pairs
from modelserver.surface.http.exchange import HotRoutes, Target
from modelserver.surface.http.head import invalid_message
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing
from modelserver.surface.http.sockets import Addresses, bytes_in_system, is_reset

# How much of its answers a client has taken, and since when it takes none.

# The share of its answer that a client must take per ``send_timeout``, and the least bytes of it.
SHARE, LEAST_SHARE = 10, 4096


class Delivery:
    """The answers of one connection, on their way to its client; a holder of :class:`Outgoing`.

    ``written``: bytes of all answers so far.
    """

    __slots__ = ("_outgoing", "_share", "_stalled_since", "_taken", "_transport", "_untaken", "written")

    def __init__(self, transport: asyncio.Transport, outgoing: Outgoing) -> None:
        self._transport = transport
        self._outgoing = outgoing
        self.written = 0
        # Bytes that the client had taken at the last progress, when that was, and how many more are progress.
        self._taken = self._share = 0
        self._stalled_since: float | None = None
        # Bytes that are counted: memory is freed when the client has taken the whole answer.
        self._untaken = 0

    def count(self, size: int) -> None:
        """So many bytes wait for the client."""
        if size > self._untaken:
            begins, self._untaken = not self._untaken, size
            if begins:
                self.waited()
            self._outgoing.count(self, size)

    def forget(self) -> None:
        """The client has taken all, or is gone."""
        if self._untaken:
            self._untaken = 0
            self._outgoing.count(self, 0)

    def waited(self) -> float:
        """Seconds since the client last took a share of its answers; counts none that it has taken whole."""
        return self.stalled(self._transport.get_write_buffer_size(), monotonic())

    def stalled(self, unsent: int, now: float) -> float:
        """What :meth:`waited` returns while the transport holds ``unsent`` bytes."""
        if not unsent:
            self._stalled_since = None
            self.forget()
            return 0.0
        # The system takes bytes from the transport in lumps of up to a megabyte: a steady reader would seem
        # to stand still between two of them.
        taken = self.written - unsent - bytes_in_system(self._transport)
        if self._stalled_since is None or abs(taken - self._taken) >= self._share:
            self._taken, self._stalled_since = taken, now
            self._share = max(LEAST_SHARE, unsent // SHARE)
        return now - self._stalled_since

    def cut(self) -> None:
        """Drops what the client has not taken, and its connection."""
        self._transport.abort()


if TYPE_CHECKING:
    from starlette.types import ASGIApp

    Request = ConnectionExchange | AsgiCycle

# Bytes that must come between two checks for the client to count as sending.
MIN_PROGRESS = 4096
# Default timeouts for clients, and the time between two checks of all connections; in seconds.
RECEIVE_TIMEOUT, SEND_TIMEOUT, KEEP_ALIVE = 60.0, 60.0, 75.0
CHECK_SECONDS = 5.0


@dataclass(slots=True)
class HttpListener:
    """What the connections of one listener share. Times are in seconds, sizes in bytes.

    ``app`` gets the requests that are not for the hot routes. Every answer has the ``headers``. With a
    ``verifier``, requests need the tokens for ``roles``, with ``ping_token`` also ``/ping``. While it
    ``is_closing``, new connections are closed; ``on_lost`` is called when one has ended.
    """

    app: ASGIApp
    hot: HotRoutes | None
    max_body: int
    on_response: OnResponse
    receive_timeout: float = RECEIVE_TIMEOUT
    send_timeout: float = SEND_TIMEOUT
    keep_alive: float = KEEP_ALIVE
    intake: Intake = field(default_factory=lambda: Intake(1 << 29))
    outgoing: Outgoing = field(default_factory=lambda: Outgoing(1 << 29))
    headers: Pairs = ()
    verifier: Verifier | None = None
    roles: AbstractSet[str] = frozenset()
    ping_token: bool = False
    guard: Guard | None = field(init=False)
    cors: Cors | None = field(init=False)
    is_closing: bool = False
    on_lost: Callable[[], object] = lambda: None
    connections: set[Http1Connection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.app = prepared(self.app)
        self.cors = Cors(self.headers) if self.headers else None
        verifier, roles, ping = self.verifier, self.roles, self.ping_token
        self.guard = None if verifier is None else Guard(verifier, roles, self.hot, ping_token=ping)

    def shutdown(self) -> None:
        """Closes idle connections now, the others after their current request, and new ones at once."""
        self.is_closing = True
        for connection in list(self.connections):
            connection.shutdown()

    def abort(self) -> None:
        """Closes all connections now."""
        for connection in list(self.connections):
            connection.transport.abort()

    def check(self, now: float) -> None:
        """Closes connections that are too slow or idle for too long; to be called every few seconds."""
        for connection in list(self.connections):
            connection.check(now)

    def check_regularly(self, every: float = CHECK_SECONDS) -> None:
        """Checks all connections now and every ``every`` seconds from then on."""
        self.check(monotonic())
        asyncio.get_running_loop().call_later(every, self.check_regularly, every)


class Arrival:
    """The request that is being received, or awaited.

    ``receiving``: a part of it has come; ``since``: when the wait for its rest, or for its beginning, began;
    ``size``: its bytes so far; ``seen``: how many bytes had come at the last check.
    """

    __slots__ = ("_held", "_intake", "receiving", "seen", "since", "size")

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._held = 0
        self.receiving = False
        self.since = monotonic()
        self.size = self.seen = 0

    def hold(self, size: int) -> None:
        """So many bytes of it are in memory, as the intake counts."""
        self._intake.add(size - self._held)
        self._held = size


class RequestSource(Protocol):
    """The parser's side of a connection.

    ``url`` is that of the last head, ``in_head``: the next bytes are part of a head. ``incoming`` is the
    exchange whose request is being received; ``unparsed``: what was put off of the last piece.
    """

    url: bytes
    in_head: bool
    incoming: ConnectionExchange | None
    unparsed: memoryview | None

    def parse_rest(self) -> None:
        """Parses what was put off."""


class Http1Connection:
    """One connection.

    ``newest`` is the last request, ``exchange`` the one on a hot route whose turn it is; ``pipeline`` are
    those that wait for their turn, the newest first. ``refused``: what comes is dropped. ``lingers``: the
    last response is written, and the client may read it. ``half_closed``: the client has closed its side.
    """

    def __init__(
        self,
        source: RequestSource,
        listener: HttpListener,
        transport: asyncio.Transport,
        arrival: Arrival,
    ) -> None:
        self._source = source
        self._listener = listener
        self._arrival = arrival
        self.transport = transport
        self.delivery = Delivery(transport, listener.outgoing)
        self.addresses = Addresses.of(transport)
        self.cors = listener.cors
        self.newest: Request | None = None
        self.pipeline: deque[Request] = deque()
        self.exchange: ConnectionExchange | None = None
        # The request that the application responds to.
        self._running: AsgiCycle | None = None
        self.refused = self.lingers = False
        self.half_closed = False
        self._read_paused = self.write_paused = False
        # The next request waits until the client has read the earlier responses.
        self._held = False
        self._writable = asyncio.Event()
        self._writable.set()

    # -- from the parser's side

    def add(self, request: Request) -> None:
        """A request whose head is complete, but perhaps not its body: it waits for its turn."""
        before, self.newest = self.newest, request
        if before is None or before.response_complete:
            self._begin(request)
        else:
            self.pause_reading()
            self.pipeline.appendleft(request)

    def serve(self, exchange: ConnectionExchange) -> None:
        """Has the endpoint answer a complete request whose turn it is."""
        listener = self._listener
        if len(exchange.body) > listener.max_body:
            # A pipelined body: its size was not checked while it arrived.
            self.refuse(PayloadTooLarge.of(listener.max_body), exchange)
            return
        if listener.outgoing.is_tight and not listener.outgoing.has_room():
            exchange.refuse(listener.outgoing.refusal())
            return
        assert listener.hot is not None  # noqa: S101 - there is no exchange without
        listener.hot.serve(exchange)

    def refuse(self, error: ModelServerError, exchange: ConnectionExchange | None = None) -> None:
        """Answers a request that will not be read to its end, and closes the connection."""
        self.refused = True
        self._arrival.hold(0)
        if exchange is not None:
            exchange.refuse(error)
            return
        # Unless it ends in the same piece.
        self._arrival.receiving = True
        newest = self.newest
        if newest is not None and not newest.more_body and not newest.response_complete:
            # Good requests came before: they are still answered, then the connection is closed.
            newest.keep_alive = False
            return
        if newest is not None and newest.more_body:
            if self.pipeline:
                # It is answered after those before it.
                return
            if newest.response_complete:
                # It was answered before its body was complete.
                self.close_gently()
                return
            # Anything else that the application answers to this request is dropped.
            newest.leave()
        unread = ConnectionExchange(self, Target(), b"-", "1.1", [], keep_alive=False)
        unread.fail(error, form=form_of(self._source.url.decode("latin-1"), error))

    def lost(self) -> None:
        """The connection has ended."""
        self._listener.connections.discard(self)
        self._arrival.hold(0)
        self.delivery.forget()
        requests = self._running, self.exchange, self.newest
        # These refer to the connection: break the reference cycles.
        self.exchange = self._running = self.newest = None
        self.pipeline.clear()
        for request in requests:
            if request is not None:
                request.leave()
        self._allow_writing()

    # -- turns

    def _begin(self, request: Request) -> None:
        """It is a request's turn."""
        listener = self._listener
        if request.announced > listener.max_body:
            if isinstance(request, AsgiCycle):
                headers, version = request.headers, request.http_version
                request = ConnectionExchange(
                    self, request.target, request.method, version, headers, keep_alive=False
                )
            self.refuse(PayloadTooLarge.of(listener.max_body), request)
        elif self.write_paused:
            self.pipeline.append(request)
            self._hold()
        elif type(request) is AsgiCycle:
            self._running = request
            task = asyncio.get_running_loop().create_task(request.run(self._listener.app))
            listener.tasks.add(task)
            task.add_done_callback(listener.tasks.discard)
        else:
            self.exchange = request
            if request.expects_continue:
                self.transport.write(CONTINUE)
            if not request.more_body:
                # A pipelined request whose body arrived while the one before it was being answered.
                self.serve(request)

    def _next(self) -> None:
        if self._source.unparsed is None:
            self.resume_reading()
        if self.pipeline:
            request = self.pipeline.pop()
            if self.refused and request.more_body:
                self.refuse(invalid_message())
            else:
                self._begin(request)
        if self._source.unparsed is not None and not self.pipeline:
            # This may be the rest of the request whose turn it is now.
            asyncio.get_running_loop().call_soon(self._source.parse_rest)

    def _hold(self) -> None:
        self._held = True
        self.pause_reading()

    # -- responses

    def finish(
        self, exchange: ConnectionExchange, status: int, answer: bytes, body: bytes = b"", *, keep: bool
    ) -> None:
        """Writes an exchange's response, and its body if that is separate; starts the next request."""
        now = monotonic()
        self._listener.on_response(
            self.addresses.peer,
            exchange.method.decode(),
            exchange.target.text,
            exchange.http_version,
            status,
            now - exchange.started,
            exchange.request_id,
        )
        if self.exchange is exchange:
            self.exchange = None
        exchange.body = b""
        transport = self.transport
        if exchange.disconnected or transport.is_closing():
            return
        exchange.response_complete = True
        # Before it is written, which may begin the time that the client has.
        self.delivery.written += len(answer) + len(body)
        transport.write(answer)
        if body:
            transport.write(body)
            if transport.get_write_buffer_size():
                self.delivery.count(len(body))
        if not keep:
            exchange.keep_alive = False
            self.close_gently()
            return
        self._responded(now)

    def write(self, data: bytes) -> None:
        """Writes a part of a response."""
        self.delivery.written += len(data)
        self.transport.write(data)
        if self.write_paused:
            self.delivery.count(self.transport.get_write_buffer_size())

    def responded(self) -> None:
        """The application's response is written."""
        self._running = None
        self._responded(monotonic())

    def _responded(self, now: float) -> None:
        if self.lingers:
            return
        self._arrival.since = now
        if self.half_closed and not self.pipeline:
            self.transport.close()
        elif self.write_paused:
            if not self.transport.is_closing():
                self._hold()
        elif (
            self.pipeline or self._read_paused or self._source.unparsed is not None
        ) and not self.transport.is_closing():
            self._next()

    # -- flow

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()
        self.delivery.count(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._allow_writing()
        self.delivery.waited()
        if self._held:
            self._held = False
            self._next()

    async def writable(self) -> None:
        """Waits until the client has read enough of what was written."""
        await self._writable.wait()

    def _allow_writing(self) -> None:
        self.write_paused = False
        self._writable.set()

    # -- the end

    def close_gently(self) -> None:
        """Closes after the client had a chance to read the response.

        If the connection were closed while the client still sends, its system would drop the response. So
        the rest is received and dropped, until the client closes its side or :meth:`check` notices that
        nothing comes any more.
        """
        source, newest = self._source, self.newest
        within = self._arrival.receiving or source.in_head or (newest is not None and newest.more_body)
        if not (within or self.pipeline or self._read_paused or source.unparsed is not None):
            self.transport.close()
            return
        if self.lingers or self.transport.is_closing():
            return
        self.refused = self.lingers = True
        self._held = False
        # What belongs to the rest is not needed any more.
        source.incoming = source.unparsed = self.newest = None
        self.pipeline.clear()
        self._arrival.hold(0)
        self._arrival.since, self._arrival.seen = monotonic(), -1
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.resume_reading()

    def shutdown(self) -> None:
        """Closes the connection now if it is idle, or behind the response to its newest request."""
        if self.newest is None or self.newest.response_complete:
            self.transport.close()
        else:
            self.newest.keep_alive = False

    def check(self, now: float) -> None:
        """Closes the connection if the client is gone, or does not send or read for too long."""
        listener, arrival, unsent = self._listener, self._arrival, self.transport.get_write_buffer_size()
        stalled = self.delivery.stalled(unsent, now) > listener.send_timeout
        if stalled or (self._read_paused and is_reset(self.transport)):
            # A regular close would wait for a client that does not read.
            self.transport.abort()
            return
        if self.lingers:
            self._check_rest(unsent, now)
            return
        newest = self.newest
        if self._read_paused or (unsent and not arrival.receiving):
            # The rest of a request cannot arrive, or a response is being read.
            arrival.since = now
        elif newest is not None and not newest.response_complete and not self.write_paused:
            if self.pipeline or not newest.more_body or newest.received - arrival.seen >= MIN_PROGRESS:
                arrival.since = now
            arrival.seen = newest.received
        if unsent:
            self.delivery.count(unsent)
        if now - arrival.since > (listener.receive_timeout if arrival.receiving else listener.keep_alive):
            self._close()

    def _check_rest(self, unsent: int, now: float) -> None:
        """Closes after the last response, once the client sends no more, or has sent for too long."""
        arrival = self._arrival
        if unsent:
            arrival.since = now
            return
        is_quiet, arrival.seen = arrival.seen == arrival.size, arrival.size
        if is_quiet or self.transport.is_closing() or now - arrival.since > self._listener.receive_timeout:
            self._close()

    def _close(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self.transport.close()
