"""A gRPC call: messages and a status on a stream of HTTP/2."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from modelserver.grpc.codes import StatusCode
from modelserver.grpc.heads import OK_HEAD, OK_TRAILERS, fields_of, http_head, trailers
from modelserver.http2.stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping

    from modelserver.grpc.heads import Head
    from modelserver.http.intake import Intake
    from modelserver.http2.connection import Connection

_PREFIX = 5
# Messages of a stream that may wait for its method.
_WAITING = 4


class Method(Protocol):
    """What serves the calls of a path."""

    streams: bool
    """Whether the client sends several messages."""

    def begin(self, call: Call, body: bytes) -> Coroutine[Any, Any, None] | None:
        """Serves a call, whose only message is ``body``; what is left to do, if anything."""


class Port:
    """What the calls of a port share.

    Args:
        methods: by `service/method`.
        largest: bytes that a message may have.
        intake: counts the bytes of messages that are not complete.
    """

    def __init__(self, methods: Mapping[str, Method], largest: int, intake: Intake) -> None:
        self.methods = methods
        self.largest = largest
        self.intake = intake

    def make(self, connection: Connection, number: int) -> Call:
        """The call on a new stream."""
        return Call(connection, number, self)


class Call(Stream):
    """One call."""

    __slots__ = (
        "_begun", "_counted", "_initial", "_messages", "_more", "_over", "_pieces", "_port", "_size", "_task",
        "arrived", "head", "is_cancelled", "method",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int, port: Port) -> None:
        super().__init__(connection, number)
        self._port = port
        self.method: Method | None = None
        self.arrived = 0.0
        self.is_cancelled = False
        # What came of a message, its bytes, and how many of them the intake counts.
        self._pieces: list[bytes] = []
        self._size = self._counted = 0
        # Whether our head was sent, and the metadata for it.
        self._begun = False
        self._initial = b""
        # Of a stream of messages: those that wait, and whether no more come.
        self._messages: deque[bytes] = deque()
        self._more: asyncio.Event | None = None
        self._over = False
        self._task: asyncio.Task[None] | None = None

    # -- from the connection

    def begun(self, head: Head, *, ended: bool) -> None:
        self.head = head
        self.arrived = monotonic()
        if head.wrong:
            self.send(http_head(head.wrong), b"", b"")
            return
        self.method = self._port.methods.get(head.path)
        if self.method is None:
            self.finish(StatusCode.UNIMPLEMENTED, "Method not found!")
        elif self.method.streams:
            self._more = asyncio.Event()
            self._run(self.method.begin(self, b""))
            if ended:
                self.received(b"", ended=True)
        elif ended:
            self.finish(StatusCode.INTERNAL, "The call has no message.")

    def received(self, piece: bytes, *, ended: bool) -> None:
        method, size = self.method, len(piece)
        if method is None or self.ended:
            self.take(size)
            return
        if (
            ended and size >= _PREFIX and not (self._pieces or method.streams or piece[0])
            and int.from_bytes(piece[1:_PREFIX], "big") == size - _PREFIX <= self._port.largest
        ):  # fmt: skip
            # The usual case: a message in one piece.
            self._run(method.begin(self, piece[_PREFIX:]))
            return
        try:
            self._add(piece)
            while (message := self._next()) is not None:
                self._messages.append(message)
        except _Wrong as wrong:
            self.finish(wrong.code, str(wrong))
            return
        if method.streams:
            self._over = ended
            if self._more is not None:
                self._more.set()
        elif len(self._messages) > 1 or (ended and not (self._messages and not self._size)):
            self.finish(StatusCode.INTERNAL, "The call must have one message.")
        elif ended:
            self._run(method.begin(self, self._messages.popleft()))

    def gone(self) -> None:
        self.is_cancelled = True
        self._drop()
        if self._task is not None:
            self._task.cancel()

    def closing(self) -> None:
        self._over = True
        if self._more is not None:
            self._more.set()

    # -- messages of the client

    def _add(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            if len(self._messages) < _WAITING:
                self.take(len(piece))
        self._count(self._size)
        if self._port.intake.is_over:
            raise _Wrong(StatusCode.RESOURCE_EXHAUSTED, "too much comes in")

    def _count(self, held: int) -> None:
        if held != self._counted:
            self._port.intake.add(held - self._counted)
            self._counted = held

    def _next(self) -> bytes | None:
        """The next whole message. Raises _Wrong."""
        if self._size < _PREFIX:
            return None
        if len(self._pieces[0]) < _PREFIX:
            self._pieces = [b"".join(self._pieces)]
        first = self._pieces[0]
        length = int.from_bytes(first[1:_PREFIX], "big")
        if length > self._port.largest:
            raise _Wrong(
                StatusCode.RESOURCE_EXHAUSTED,
                f"Received message larger than max ({length} vs. {self._port.largest})",
            )
        if self._size < _PREFIX + length:
            return None
        whole = first if len(self._pieces) == 1 else b"".join(self._pieces)
        rest = whole[_PREFIX + length :]
        self._pieces, self._size = [rest] if rest else [], len(rest)
        self._count(self._size)
        return self._plain(first[0], whole[_PREFIX : _PREFIX + length])

    def _plain(self, flag: int, message: bytes) -> bytes:
        if flag == 0:
            return message
        bits = {"gzip": 31, "deflate": 15}.get(self.head.encoding)
        if flag != 1 or bits is None:
            raise _Wrong(StatusCode.INTERNAL, f"The message is compressed in an unknown way: {flag}")
        unpacker = zlib.decompressobj(bits)
        try:
            plain = unpacker.decompress(message, self._port.largest + 1)
        except zlib.error as error:
            raise _Wrong(StatusCode.INTERNAL, f"The message cannot be decompressed: {error}") from error
        if len(plain) > self._port.largest:
            text = f"The message has more than {self._port.largest} bytes"
            raise _Wrong(StatusCode.RESOURCE_EXHAUSTED, text)
        return plain

    async def messages(self) -> AsyncIterator[bytes]:
        """The messages of a stream, until the client has no more."""
        assert self._more is not None  # noqa: S101 - only methods that stream read them
        while True:
            while self._messages:
                message = self._messages.popleft()
                yield message
                self.take(len(message) + _PREFIX)
            if self._over:
                return
            self._more.clear()
            await self._more.wait()

    def _drop(self) -> None:
        self._pieces.clear()
        self._messages.clear()
        self._count(0)

    # -- for methods

    def _run(self, rest: Coroutine[Any, Any, None] | None) -> None:
        if rest is not None:
            self._task = asyncio.get_running_loop().create_task(rest)

    @property
    def client(self) -> str:
        """The peer's address as in the access log: `127.0.0.1:5000`."""
        return self.connection.peer

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None if it has none."""
        timeout = self.head.timeout
        return None if timeout is None else timeout - (monotonic() - self.arrived)

    def tell(self, metadata: Iterable[tuple[str, str]]) -> None:
        """Adds to the initial metadata; at most before the first message."""
        self._initial += fields_of(metadata)

    def write(self, message: bytes) -> None:
        """Sends a message; see :meth:`room`."""
        self.send(self._opening(), _framed(message))

    def answer(self, message: bytes) -> None:
        """Sends the only message, and ends the call well."""
        self.send(self._opening(), _framed(message), OK_TRAILERS)

    def finish(self, code: StatusCode, text: str = "", trailing: Iterable[tuple[str, str]] = ()) -> None:
        """Ends the call with a status."""
        if not self.ended:
            self._drop()
            # Without a message, all is said in one head.
            last = self._opening() + trailers(code, text) + fields_of(trailing)
            self.send(b"", b"", last)

    def _opening(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return OK_HEAD + self._initial


class _Wrong(Exception):
    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def _framed(message: bytes) -> bytes:
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)
