"""Calls of gRPC for tests: one that notes what a method does, and a server for real ones."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from time import monotonic
from types import SimpleNamespace

from modelserver.ext.grpc.call import GrpcCall, GrpcPort
from modelserver.ext.grpc.calls import CallContext
from modelserver.ext.grpc.framing import message_framed
from modelserver.ext.grpc.heads import CallHead, read_head
from modelserver.ext.grpc.http2 import frames
from modelserver.ext.grpc.http2.connection import Http2Connection, Http2Listener
from modelserver.ext.grpc.http2.stream import Http2Limits
from modelserver.ext.grpc.statuses import StatusCode
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.http.outgoing import Outgoing

LARGEST = 64 << 20  # bytes of a message
CLIENT = "127.0.0.1:1"


class FakeCall(GrpcCall):
    """Without a connection; ``timeout`` in seconds from now.

    ``initial`` is the metadata that was told, ``sent`` the messages; ``ending`` the code, text and metadata
    with which the call ended, None before.
    """

    def __init__(self, metadata=(), *, timeout=None, cancelled=False, unread=False, requests=()):
        self.head = CallHead("", metadata, timeout, "identity", 0)
        self.arrived = monotonic()
        self.is_cancelled, self.is_unread = cancelled, unread
        self.on_queued = None
        self.held = 0
        self.initial: list[tuple[str, str]] = []
        self.sent: list[bytes] = []
        self.ending: tuple[StatusCode, str, tuple[tuple[str, str], ...]] | None = None
        self._requests = requests

    @property
    def client(self) -> str:
        return CLIENT

    def add_metadata(self, metadata: Iterable[tuple[str, str]]) -> None:
        assert not self.sent
        self.initial += metadata

    def write(self, message: bytes) -> None:
        assert self.ending is None
        self.sent.append(message)

    def check_room(self) -> None:
        """There is."""

    def hold(self, size: int) -> None:
        self.held += size

    async def room(self) -> None:
        await asyncio.sleep(0)

    def answer(self, message: bytes) -> None:
        self.write(message)
        self.finish(StatusCode.OK)

    def finish(self, code: StatusCode, text: str = "", trailing: Iterable[tuple[str, str]] = ()) -> None:
        if self.ending is None:
            self.ending = code, text, tuple(trailing)

    async def messages(self) -> AsyncGenerator[bytes, None]:
        for request in self._requests:
            await asyncio.sleep(0)
            yield request


def around_calls(codes: list[int]) -> CallContext:
    """Lets all calls pass; ``codes`` gets those with which they end."""
    gate = SimpleNamespace(check=lambda *_: None)
    access = SimpleNamespace(log=lambda *line: codes.append(line[4]))
    metrics = SimpleNamespace(response=lambda *_: None)
    return CallContext(metrics, access, gate)


def services(intake, outgoing):
    """What calls need of the server."""
    return SimpleNamespace(intake=intake, outgoing=outgoing, off_loop=OffLoop(1000))


@dataclass(frozen=True, slots=True)
class Listening:
    listener: Http2Listener
    address: str


@contextlib.asynccontextmanager
async def listening(methods, limits=None):
    """A server of these methods on a port of its own, until the block is left."""
    port = GrpcPort(methods, LARGEST, services(Intake(1 << 30), Outgoing(1 << 30)))
    listener = Http2Listener(port.make, read_head, limits or Http2Limits())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http2Connection(listener), "127.0.0.1", 0)
    try:
        yield Listening(listener, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        for connection in list(listener.connections):
            connection.abort()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def connected(server: Listening) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = server.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


# The first bytes of a client.
GREETING = frames.PREFACE + frames.settings(())


def asking(path: str, body: bytes, number: int = 1) -> bytes:
    fields = {":method": "POST", ":scheme": "http", ":path": f"/{path}", "content-type": "application/grpc"}
    head = b"".join(frames.field(name.encode(), value.encode()) for name, value in fields.items())
    return frames.frame(frames.HEADERS, frames.END_HEADERS, number, head) + frames.frame(
        frames.DATA, frames.END_STREAM, number, message_framed(body)
    )
