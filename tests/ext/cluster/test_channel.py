from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest
from tests.ext.cluster.loops import on_loop

from modelserver.engine.wire.arena import create
from modelserver.engine.wire.frames import encode
from modelserver.engine.wire.messages import Answer, Ping, Pong, Result
from modelserver.ext.cluster.channel import RemoteChannel

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT = 1 << 22


class Line:
    """A channel on a connection whose other end the test has."""

    def __init__(self, loop: asyncio.AbstractEventLoop, family: int) -> None:
        self._loop = loop
        self.messages: list[tuple[Any, bytes]] = []
        self.lost: asyncio.Future[str | None] = loop.create_future()
        if family == socket.AF_UNIX:
            ours, self.end = socket.socketpair()
        else:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.end = socket.create_connection(listener.getsockname())
                ours, _ = listener.accept()
        self.end.setblocking(False)

        async def connect() -> None:
            def take(message: Any, tail: memoryview) -> None:
                self.messages.append((message, bytes(tail)))

            self.channel = RemoteChannel(take, self.lost.set_result, _LIMIT)
            assert not self.channel.connected.done()
            ours.setblocking(False)
            await loop.connect_accepted_socket(lambda: self.channel, ours)

        loop.run_until_complete(connect())

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.end, data)

    async def received(self, count: int) -> list[tuple[Any, bytes]]:
        """So many messages."""
        for _ in range(1000):
            if len(self.messages) >= count:
                return self.messages
            await asyncio.sleep(0.005)
        raise AssertionError(self.messages)


@pytest.fixture(params=[socket.AF_INET, socket.AF_UNIX], ids=["network", "local"])
def line(loop: asyncio.AbstractEventLoop, request: pytest.FixtureRequest) -> Iterator[Line]:
    yield from opened(loop, request.param)


@pytest.fixture
def other(loop: asyncio.AbstractEventLoop) -> Iterator[Line]:
    yield from opened(loop, socket.AF_INET)


def opened(loop: asyncio.AbstractEventLoop, family: int) -> Iterator[Line]:
    made = Line(loop, family)
    yield made

    async def close() -> None:
        made.channel.close()
        await asyncio.sleep(0.01)

    loop.run_until_complete(close())
    made.end.close()


on_network = pytest.mark.parametrize("line", [socket.AF_INET], indirect=True)


@on_loop
async def test_frames_of_any_size_in_any_pieces(line: Line) -> None:
    """Small ones together, large ones where they belong, and those that begin in one and end in another."""
    bodies = [os.urandom(size) for size in (0, 10, 70_000, 3_000_000, 5, 300_000, 1)]
    sent = b"".join(
        b"".join(encode(Result(n, [Answer(len(body))], 0.0), [body])) for n, body in enumerate(bodies)
    )
    for start in range(0, len(sent), 100_001):
        await line.send(sent[start : start + 100_001])
    got = await line.received(len(bodies))
    assert [(message.sequence, tail) for message, tail in got] == list(enumerate(bodies))
    assert line.channel.connected.done()


@on_loop
async def test_pieces_for_two_channels_in_turns(line: Line, other: Line) -> None:
    """Each gets its own, though both receive small frames into the same memory."""
    bodies = [os.urandom(size) for size in (10, 70_000, 200_000, 1)]
    lines = (line, bodies), (other, bodies[::-1])
    frames = [
        b"".join(
            b"".join(encode(Result(n, [Answer(len(body))], 0.0), [body])) for n, body in enumerate(theirs)
        )
        for _, theirs in lines
    ]
    for start in range(0, len(frames[0]), 9_001):
        for (each, _), sent in zip(lines, frames, strict=True):
            await each.send(sent[start : start + 9_001])
        await asyncio.sleep(0)
    for each, theirs in lines:
        assert [tail for _, tail in await each.received(4)] == theirs


@on_loop
async def test_a_large_frame_is_received_in_place(line: Line) -> None:
    """Once its size is known, its bytes are not collected elsewhere first."""
    head = b"".join(encode(Result(0, [Answer(1_000_000)], 0.0), [bytes(1_000_000)]))
    await line.send(head[:100])
    for _ in range(200):
        if line.channel._reader.room() is not None:
            break
        await asyncio.sleep(0.005)
    room = line.channel.get_buffer(0)
    assert len(room) == len(head) - 100
    await line.send(head[100:])
    assert (await line.received(1))[0][1] == bytes(1_000_000)


@on_loop
async def test_an_idle_worker_keeps_no_memory(line: Line) -> None:
    """What was kept for large frames is given back with a ping, which only idle workers get."""
    await line.send(b"".join(encode(Result(0, [Answer(1_000_000)], 0.0), [bytes(1_000_000)])))
    await line.received(1)
    kept = len(line.channel._reader._spare)
    line.channel.send(Ping())

    assert kept > 1_000_000
    assert line.channel._reader._spare == b""


@on_network
@pytest.mark.parametrize("size", [_LIMIT + 1, 0xFFFFFFFF])
@on_loop
async def test_a_frame_over_the_limit(line: Line, size: int) -> None:
    """It ends the connection, with the reason, before there is memory for it; the limit can be changed."""
    line.channel.allow(_LIMIT)
    await line.send(struct.pack("<II", size, 10))
    assert f"no frame: {size} bytes announced" in (await asyncio.wait_for(line.lost, 5) or "")
    assert line.channel._reader._frame is None


@on_loop
async def test_whether_the_worker_is_here(line: Line) -> None:
    """A worker on the server's own socket is local, and one on the network is not, even once it is gone."""
    local = line.end.family == socket.AF_UNIX
    assert line.channel.is_local == local
    line.end.close()
    await asyncio.wait_for(line.lost, 5)
    assert not line.channel.is_local or local


@on_network
@on_loop
async def test_a_reset_is_no_message(line: Line) -> None:
    """A machine that is gone resets its connection: there is no reason to tell."""
    line.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.end.close()
    assert await asyncio.wait_for(line.lost, 5) is None
    line.channel.send(Ping())


@on_loop
async def test_memory_that_is_shared(line: Line) -> None:
    """The memory of an agent on this machine is used; other files at its place are not."""
    memory = create()
    if memory is None:
        pytest.skip("memory cannot be shared here")
    line.channel.share("")
    assert line.channel._arena is None
    with pytest.raises(OSError, match="/etc/hostname is no descriptor of a process"):
        line.channel.share("/etc/hostname")
    other, own = os.memfd_create("other"), f"/proc/{os.getpid()}/fd"
    with pytest.raises(OSError, match="no memory for sharing"):
        line.channel.share(f"{own}/{other}")
    os.close(other)
    line.channel.share(f"{own}/{memory.descriptor}")
    assert line.channel._reader.arena is not None
    memory.close()
    await line.send(b"".join(encode(Pong())))
    assert (await line.received(1))[0] == (Pong(), b"")
