"""The messages between the server and a front-end process.

All messages of one turn of a side's loop form one frame (or several, if they are large):

    u32 size of the head | u64 size of the rest | head (msgpack, a list of messages) | bytes of the messages

A list is decoded in one call, and under load a turn has many requests. Bodies follow the head unchanged; a
message with a body has its ``size``. Large ones are in memory that both sides share
(:mod:`modelserver.engine.wire.arena`), and :class:`Stored` says where. ``number`` is the front end's number
for a request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Generic, TypeAlias, TypeVar

import msgspec

PREFIX = struct.Struct("<IQ")
# Bytes of bodies after which a frame ends, and up to which a frame is joined into one piece.
FRAME_BYTES = 1 << 24
_JOIN_LIMIT = 1 << 16
_MAX_HEAD = 1 << 31
# Bytes of a body from which it is stored in shared memory, if there is any and it has room.
LARGE = 1 << 17

Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class FrameError(Exception):
    """The other side sent something other than a frame."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Front end, once: it is ready for connections."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Front end: a whole request on a hot route, with its body.

    ``headers`` is msgpack of ``[[name, value], ...]`` as received; the other fields are those of
    :class:`modelserver.surface.http.exchange.Exchange`, ``url`` is its target's text.
    """

    number: int
    size: Size
    url: bytes
    method: bytes
    version: str
    headers: bytes
    content_type: str
    encoding: bytes
    deadline_ms: int
    request_id: str
    has_traceparent: bool


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Front end: the client disconnected before the end of the answer, or the answer cannot be sent."""

    number: int


class RequestHead(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Front end: the head of any other request, in ASGI's terms."""

    number: int
    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    http_version: str
    scheme: str
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Front end: what :class:`More` asked for. ``left``: the client has disconnected."""

    number: int
    size: Size
    more: bool
    left: bool = False


class RefusedByFrontend(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Front end: it refused a request itself, with this status."""

    status: int


class LogRecord(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Front end: a log record (access log lines too); ``created`` as in :func:`time.time`."""

    logger: str
    level: int
    created: float
    text: str
    trace_id: str = ""
    request_ids: list[str] = []


class StoppedListening(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Front end: after :class:`Close`: it accepts no more connections; later requests are on open ones."""


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Front end: bytes that the client has read of a streamed response, or one to a :class:`RequestHead`."""

    number: int
    total: int


class Stalled(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Front end: its event loop was blocked for so many seconds of CPU time."""

    seconds: float


class Setup(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Server, once: maximum bytes of one body, of all bodies being received, of all answers not yet taken.

    ``access``, ``stamped``, ``names_failures``, ``probes``: whether access lines are wanted, have their own
    time, end with the id of a failed request, and are written of health checks that succeed.
    ``cors`` are headers for every answer. ``guarded`` are the roles of the listener if tokens are required,
    with ``ping_token`` also for ``/ping``; none are valid before :class:`Tokens`. ``tls`` is the
    certificate chain, its key and the client authorities, all PEM; None: no TLS. ``paths`` are those of
    further protocols.
    """

    max_body: int
    max_incoming: int
    access: bool
    stamped: bool
    cors: tuple[tuple[bytes, bytes], ...] = ()
    guarded: tuple[str, ...] = ()
    ping_token: bool = False
    tls: tuple[bytes, bytes, bytes] | None = None
    names_failures: bool = True
    max_outgoing: int = 1 << 29
    probes: bool = True
    paths: tuple[tuple[str, str], ...] = ()


class Open(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Server: accept connections from now on."""


class WholeReply(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Server: a whole answer, as :meth:`modelserver.surface.http.exchange.Exchange.reply` takes it."""

    number: int
    size: Size
    status: int
    content_type: str
    extra: bytes
    phrase: str = ""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Server: the head of an answer in parts."""

    number: int
    status: int
    content_type: str
    extra: bytes
    phrase: str


class ReplyPart(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Server: the next part of an answer."""

    number: int
    size: Size


class End(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Server: the end of an answer in parts."""

    number: int
    complete: bool


class Traced(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """Server: the answer that follows belongs to this trace, for the access log."""

    number: int
    trace_id: str


class More(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Server: the application waits for the next piece of a :class:`RequestHead`."""

    number: int


class ResponseHead(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """Server: status and headers of the answer to a :class:`RequestHead`."""

    number: int
    status: int
    headers: list[tuple[bytes, bytes]]


class Content(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """Server: bytes of the answer to a :class:`RequestHead`; ``more``: others follow."""

    number: int
    size: Size
    more: bool


class Done(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """Server: the application has returned from a :class:`RequestHead`."""

    number: int


class Close(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """Server: accept no more connections, finish requests, and exit."""


class Hurry(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """Server: close the remaining connections, and exit."""


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """Server: only these tokens are valid from now on, whose hashes the server's verifier has packed."""

    packed: bytes


class Paths(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """Server: models answer at these paths, and below, from now on, too."""

    paths: tuple[str, ...]


class Certified(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """Server: new connections get this certificate; as ``tls`` in :class:`Setup`."""

    tls: tuple[bytes, bytes, bytes]


class Stored(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """Either: the body of the next message is not in the frame, but in the shared memory at ``place``."""

    place: int


FromFrontend: TypeAlias = (
    Stored
    | Ready
    | Ask
    | Gone
    | RequestHead
    | Piece
    | RefusedByFrontend
    | LogRecord
    | StoppedListening
    | Taken
    | Stalled
)
ToCall: TypeAlias = More | ResponseHead | Content | Done
ToConnections: TypeAlias = Setup | Open | Close | Hurry | Tokens | Paths | Certified | Traced
ToFrontend: TypeAlias = Stored | WholeReply | Begin | ReplyPart | End | ToCall | ToConnections

Message: TypeAlias = FromFrontend | ToFrontend
MessageT = TypeVar("MessageT", FromFrontend, ToFrontend)

_SIZED = (Ask, WholeReply, ReplyPart, Piece, Content)

_encode = msgspec.msgpack.Encoder().encode
from_frontend_decoder = msgspec.msgpack.Decoder(list[FromFrontend])
to_frontend_decoder = msgspec.msgpack.Decoder(list[ToFrontend])


class Turn:
    """Collects the messages of one side; :meth:`take` makes frames of them."""

    __slots__ = ("_bodies", "_full", "_messages", "_size")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._bodies: list[bytes] = []
        self._size = 0
        self._full: list[bytes] = []

    def add(self, message: Message, body: bytes = b"", *, place: int | None = None) -> None:
        """Appends a message; ``body`` has the message's ``size``, and may be stored at ``place``."""
        if place is not None:
            self._messages += (Stored(place), message)
            return
        self._messages.append(message)
        if body:
            self._bodies.append(body)
            self._size += len(body)
            if self._size >= FRAME_BYTES:
                self._full += self._frame()

    def take(self) -> list[bytes]:
        """Removes and returns the pieces to be written."""
        if not self._full:
            return self._frame() if self._messages else []
        pieces, self._full = self._full, []
        return pieces + self._frame() if self._messages else pieces

    def _frame(self) -> list[bytes]:
        head = _encode(self._messages)
        prefix = PREFIX.pack(len(head), self._size)
        bodies, joined = self._bodies, self._size <= _JOIN_LIMIT
        self._messages, self._bodies, self._size = [], [], 0
        if joined:
            return [b"".join((prefix, head, *bodies))]
        return [prefix + head, *bodies]


class TurnReader(Generic[MessageT]):
    """Turns received bytes into messages; keeps what is incomplete.

    Args:
        decoder: decodes the other side's messages.
        fetch: returns and frees the bytes at a place of the shared memory.
    """

    def __init__(
        self, decoder: msgspec.msgpack.Decoder[list[MessageT]], fetch: Callable[[int, int], bytes]
    ) -> None:
        self._decode: Callable[[memoryview], list[MessageT]] = decoder.decode
        self._fetch = fetch
        self._pending = bytearray()
        self._needed = 0

    def feed(self, data: bytes) -> Iterator[tuple[MessageT, bytes]]:
        """Yields each complete message with its own body.

        Raises:
            FrameError: for anything else than a frame; the connection is unusable afterwards.
        """
        buffer: bytes | bytearray = data
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed:
                return
            buffer, self._pending = self._pending, bytearray()
        self._needed = 0
        position, available = 0, len(buffer)
        view = memoryview(buffer)
        while available - position >= PREFIX.size:
            head, size = PREFIX.unpack_from(buffer, position)
            if head > _MAX_HEAD:
                raise FrameError(f"no frame: a head of {head} bytes is announced")
            start = position + PREFIX.size
            end = start + head + size
            if end > available:
                self._needed = end - position
                break
            yield from self._read(view[start : start + head], view[start + head : end])
            position = end
        if position < available:
            self._pending += view[position:]

    def _read(self, head: memoryview, rest: memoryview) -> Iterator[tuple[MessageT, bytes]]:
        try:
            messages = self._decode(head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"no messages: {error}") from error
        stored: int | None = None
        position = 0
        for message in messages:
            if isinstance(message, Stored):
                stored = message.place
            elif not isinstance(message, _SIZED):
                yield message, b""
            elif stored is not None:
                place, stored = stored, None
                yield message, self._fetch(place, message.size)
            else:
                end = position + message.size
                if end > len(rest):
                    raise FrameError(f"{len(rest)} bytes of bodies came, more were announced")
                yield message, bytes(rest[position:end])
                position = end
        if position != len(rest):
            raise FrameError(f"{len(rest)} bytes of bodies came, {position} were announced")
