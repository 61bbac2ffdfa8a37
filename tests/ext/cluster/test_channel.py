import asyncio
import contextlib
import os
import socket
import struct
from typing import Any

import pytest
from tests.waiting import until

from modelserver.engine.pools.spec import Receiver
from modelserver.engine.wire.arena import Arena
from modelserver.engine.wire.frames import encode
from modelserver.engine.wire.messages import Answer, Ping, Pong, Result
from modelserver.ext.cluster.channel import RemoteChannel

_LIMIT = 1 << 22


class Line:
    """A channel on a connection whose other end the test has."""

    def __init__(self, family):
        self.messages: list[tuple[Any, bytes]] = []
        self.lost: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        if family == socket.AF_UNIX:
            self._ours, self.end = socket.socketpair()
        else:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.end = socket.create_connection(listener.getsockname())
                self._ours, _ = listener.accept()
        self.end.setblocking(False)

        self._ours.setblocking(False)
        self.channel = RemoteChannel(Receiver(self._take, self.lost.set_result), _LIMIT)
        assert not self.channel.connected.done()

    def _take(self, message, tail):
        self.messages.append((message, bytes(tail)))

    async def connect(self):
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.channel, self._ours)

    async def send(self, data):
        await asyncio.get_running_loop().sock_sendall(self.end, data)

    async def received(self, count):
        await until(lambda: len(self.messages) >= count)
        return self.messages


@pytest.fixture(params=[socket.AF_INET, socket.AF_UNIX], ids=["network", "local"])
async def line(request):
    async with opened(request.param) as made:
        yield made


@pytest.fixture
async def other():
    async with opened(socket.AF_INET) as made:
        yield made


@contextlib.asynccontextmanager
async def opened(family):
    made = Line(family)
    await made.connect()
    yield made
    made.channel.close()
    await asyncio.sleep(0.01)
    made.end.close()


on_network = pytest.mark.parametrize("line", [socket.AF_INET], indirect=True)


async def test_frames_of_any_size_arrive_in_any_pieces(line):
    bodies = [os.urandom(size) for size in (0, 10, 70_000, 3_000_000, 5, 300_000, 1)]
    sent = b"".join(
        b"".join(encode(Result(n, [Answer(len(body))], 0.0), [body])) for n, body in enumerate(bodies)
    )
    for start in range(0, len(sent), 100_001):
        await line.send(sent[start : start + 100_001])
    got = await line.received(len(bodies))
    assert [(message.sequence, tail) for message, tail in got] == list(enumerate(bodies))
    assert line.channel.connected.done()


async def test_channels_do_not_mix_their_pieces(line, other):
    """Each gets its own, though both receive small frames into the same memory."""
    bodies = [os.urandom(size) for size in (10, 70_000, 200_000, 1)]
    lines = (line, bodies), (other, bodies[::-1])
    frames = [
        b"".join(
            b"".join(encode(Result(n, [Answer(len(body))], 0.0), [body])) for n, body in enumerate(others)
        )
        for _, others in lines
    ]
    for start in range(0, len(frames[0]), 9_001):
        for (each, _), sent in zip(lines, frames, strict=True):
            await each.send(sent[start : start + 9_001])
        await asyncio.sleep(0)
    for each, others in lines:
        assert [tail for _, tail in await each.received(4)] == others


async def test_a_large_frame_is_received_in_place_and_its_memory_released_when_idle(line):
    head = b"".join(encode(Result(0, [Answer(1_000_000)], 0.0), [bytes(1_000_000)]))
    await line.send(head[:100])
    await until(lambda: line.channel._reader.room() is not None)
    room = line.channel.get_buffer(0)
    assert len(room) == len(head) - 100
    await line.send(head[100:])
    assert (await line.received(1))[0][1] == bytes(1_000_000)

    remaining = len(line.channel._reader._spare)
    line.channel.send(Ping())

    assert remaining > 1_000_000
    assert line.channel._reader._spare == b""


@on_network
@pytest.mark.parametrize("size", [_LIMIT + 1, 0xFFFFFFFF])
async def test_frame_over_the_limit_ends_the_connection(line, size):
    line.channel.allow(_LIMIT)
    await line.send(struct.pack("<II", size, 10))
    assert f"no frame: {size} bytes announced" in (await asyncio.wait_for(line.lost, 5) or "")
    assert line.channel._reader._frame is None


async def test_channel_knows_whether_its_worker_is_local(line):
    local = line.end.family == socket.AF_UNIX
    assert line.channel.is_local == local
    line.end.close()
    await asyncio.wait_for(line.lost, 5)
    assert not line.channel.is_local or local


@on_network
async def test_a_reset_is_no_message(line):
    line.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.end.close()
    assert await asyncio.wait_for(line.lost, 5) is None
    line.channel.send(Ping())


async def test_only_shared_memory_of_an_agent_is_used(line):
    memory = Arena.create()
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
