"""A gRPC call: messages and a status on a stream of HTTP/2."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from time import monotonic
from typing import Any, Protocol

from modelserver.engine.batching.request import Request
from modelserver.errors import ServiceUnavailable
from modelserver.ext.grpc.framing import PREFIX, CallRefused, Inbox, message_framed, unpacked
from modelserver.ext.grpc.heads import OK_HEAD, OK_TRAILERS, CallHead, fields_of, http_head, trailers
from modelserver.ext.grpc.http2.stream import Http2Stream, StreamCarrier
from modelserver.ext.grpc.statuses import StatusCode
from modelserver.surface.api.services import Services

_log = logging.getLogger("modelserver.grpc")


class CallHandler(Protocol):
    """Serves the calls of a path."""

    streams: bool
    """Whether the client sends several messages."""

    def begin(self, call: GrpcCall, body: bytes) -> Coroutine[Any, Any, None]:
        """Serves a call, whose only message is ``body``, to its end."""


class GrpcPort:
    """The state that the calls of a port share.

    Args:
        methods: by `service/method`.
        largest: bytes that a message may have.
        services: with the counts of the bytes of messages that are not read yet, and of those of answers that
            clients have not taken.
    """

    def __init__(self, methods: Mapping[str, CallHandler], largest: int, services: Services) -> None:
        self.methods = methods
        self.largest = largest
        self.intake = services.intake
        self.outgoing = services.outgoing
        # Cancels what calls run in.
        self.later = services.off_loop.later

    def make(self, connection: StreamCarrier, number: int) -> GrpcCall:
        return GrpcCall(connection, number, self)


class GrpcCall(Http2Stream):
    """One call. ``is_cancelled``: the client is gone; ``is_unread``: it has not taken its answer.

    ``on_queued`` is called with each of its requests, and the version of a model that gets it, if the call is
    watched.
    """

    __slots__ = (
        "_counted",
        "_deadline",
        "_inbox",
        "_more",
        "_opening",
        "_over",
        "_owed",
        "_port",
        "_received_at",
        "_started",
        "_task",
        "_wrong",
        "arrived",
        "head",
        "is_cancelled",
        "is_unread",
        "method",
        "on_queued",
    )

    head: CallHead

    def __init__(self, connection: StreamCarrier, number: int, port: GrpcPort) -> None:
        super().__init__(connection, number)
        self._port = port
        self.method: CallHandler | None = None
        self.on_queued: Callable[[Request, Any], None] | None = None
        self.arrived = self._received_at = 0.0
        self.is_cancelled = self.is_unread = False
        # Received messages that are not read yet, their bytes that the intake counts, and those that are not
        # acknowledged.
        self._inbox: Inbox | None = None
        self._counted = self._owed = 0
        # The head of the response, until it is sent.
        self._opening = OK_HEAD
        # For a stream of messages: _more is set when data has come, _over if no more comes.
        self._more: asyncio.Event | None = None
        self._over = False
        self._wrong: tuple[StatusCode, str] | None = None
        # Whether the method has started, and its task until it is done.
        self._started = False
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # -- from the connection

    def on_head(self, head: CallHead, *, ended: bool) -> None:
        self.head = head
        self.arrived = self._received_at = monotonic()
        if head.wrong:
            self.send(b"", b"", http_head(head.wrong))
            return
        method = self.method = self._port.methods.get(head.path)
        if method is None:
            self.finish(StatusCode.UNIMPLEMENTED, "Method not found!")
        elif method.streams:
            self._more = asyncio.Event()
            self._inbox = Inbox(self._port.largest)
            self._over = ended
            self._run(method.begin(self, b""))
        elif ended:
            self.finish(StatusCode.INTERNAL, "The call has no message.")

    def on_data(self, piece: bytes, *, ended: bool) -> None:
        method, size = self.method, len(piece)
        if method is None or self.ended:
            self.take(size)
        elif (
            ended
            and size >= PREFIX
            and self._inbox is None
            and not piece[0]
            and int.from_bytes(piece[1:PREFIX], "big") == size - PREFIX <= self._port.largest
        ):
            # The usual case: one message in one piece.
            self._run(method.begin(self, piece[PREFIX:]))
        else:
            try:
                self._add(method, piece, ended=ended)
            except CallRefused as error:
                if self._more is None:
                    self.refuse(error)
                else:
                    self._wrong = error.code, str(error)
                    self._more.set()

    def refuse(self, error: CallRefused) -> None:
        """Ends the call, whose message is not served."""
        self.finish(error.code, str(error))

    def on_end(self) -> None:
        self.is_cancelled = True
        self._drop()
        if self._task is not None:
            self._port.later(self._task.cancel)
        self._settle()

    def on_shutdown(self) -> None:
        self._over = True
        if self._more is not None:
            self._more.set()

    def check(self, now: float) -> None:
        super().check(now)
        timeout = self.connection.limits.receive_timeout
        if self.method is None or self.ended or monotonic() - self._received_at <= timeout:
            return
        silence = StatusCode.DEADLINE_EXCEEDED, f"Nothing of the message came for {timeout:g} s."
        if self._more is not None:
            # Between messages, a stream may be silent.
            if self._wrong is None and self._inbox is not None and self._inbox.is_partial:
                self._wrong = silence
                self._more.set()
        elif not self._started:
            self.finish(*silence)

    def cut(self) -> None:
        self.is_unread = True
        path, seconds = self.head.path, self.waited()
        _log.warning(
            "The answer of %s to %s ends: its client reads too little for %.0f s", path, self.client, seconds
        )
        super().cut()

    # -- messages of the client

    def _add(self, method: CallHandler, piece: bytes, *, ended: bool) -> None:
        """Raises CallRefused."""
        inbox = self._inbox = self._inbox or Inbox(self._port.largest)
        inbox.add(piece)
        self._received_at = monotonic()
        self._owed += len(piece)
        is_complete = inbox.is_complete
        self._count(inbox.held)
        if self._port.intake.is_over:
            self._drop()
            raise CallRefused(StatusCode.UNAVAILABLE, self._port.intake.refusal().message)
        if not is_complete:
            self._acknowledge()
        if self._more is not None:
            self._over = self._over or ended
            self._more.set()
        elif inbox.has_more or (ended and not is_complete):
            raise CallRefused(StatusCode.INTERNAL, "The call must have one message.")
        elif ended:
            self._begin(method, *inbox.next())

    def _begin(self, method: CallHandler, flag: int, message: bytes) -> None:
        self._drop()
        self._run(method.begin(self, message) if flag == 0 else self._begin_packed(method, message))

    async def _begin_packed(self, method: CallHandler, message: bytes) -> None:
        try:
            plain = await self._unpacked(message)
        except CallRefused as error:
            self.refuse(error)
            return
        del message
        await method.begin(self, plain)

    async def _unpacked(self, message: bytes) -> bytes:
        """Raises CallRefused."""
        intake, largest = self._port.intake, self._port.largest
        try:
            # The size of the unpacked message is unknown.
            with intake.holding(largest):
                return await unpacked(message, self.head.encoding, largest)
        except ServiceUnavailable as error:
            raise CallRefused(StatusCode.UNAVAILABLE, error.message) from error

    def _acknowledge(self) -> None:
        owed, self._owed = self._owed, 0
        if owed:
            self.take(owed)

    def _count(self, held: int) -> None:
        if held != self._counted:
            self._port.intake.add(held - self._counted)
            self._counted = held

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """The messages of a stream, until the client has no more. Raises CallRefused."""
        inbox, more = self._inbox, self._more
        assert inbox is not None and more is not None  # noqa: PT018, S101 - only methods that stream read them
        while True:
            while inbox.is_complete:
                flag, message = inbox.next()
                self._count(inbox.held)
                yield message if flag == 0 else await self._unpacked(message)
            self._acknowledge()
            if self._wrong is not None:
                raise CallRefused(*self._wrong)
            if self._over:
                return
            more.clear()
            await more.wait()

    def _drop(self) -> None:
        if self._inbox is not None:
            self._inbox.clear()
            self._count(0)

    # -- for methods

    def _run(self, serving: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        self._started = True
        self._task = loop.create_task(serving)
        left = self.time_remaining()
        if left is not None:
            self._deadline = loop.call_later(max(left, 0), self._port.later, self._task.cancel)

    @property
    def client(self) -> str:
        """The peer's address as in the access log: `127.0.0.1:5000`."""
        return self.connection.peer

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None if it has none."""
        timeout = self.head.timeout
        return None if timeout is None else timeout - (monotonic() - self.arrived)

    def check_room(self) -> None:
        """Raises CallRefused if too many answers wait for their clients to serve another request."""
        outgoing = self._port.outgoing
        if not outgoing.has_room():
            raise CallRefused(StatusCode.UNAVAILABLE, outgoing.refusal().message)

    def add_metadata(self, metadata: Iterable[tuple[str, str]]) -> None:
        """Adds to the initial metadata; at most before the first message."""
        self._opening += fields_of(metadata)

    def write(self, message: bytes) -> None:
        """Sends a message; see :meth:`room`."""
        opening, self._opening = self._opening, b""
        self.send(opening, message_framed(message))

    def answer(self, message: bytes) -> None:
        """Sends the only message, and ends the call well."""
        self._settle()
        self.send(self._opening, message_framed(message), OK_TRAILERS)

    def finish(self, code: StatusCode, text: str = "", trailing: Iterable[tuple[str, str]] = ()) -> None:
        self._settle()
        self._drop()
        # Without a message, one block has all fields.
        last = self._opening + trailers(code, text) + fields_of(trailing)
        self.send(b"", b"", last)

    def _settle(self) -> None:
        """The method has done its work, and its task is not kept: an error in it would keep its frames."""
        self._task = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
