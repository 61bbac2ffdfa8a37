import asyncio
import os
import socket
import struct

import pytest
from tests.waiting import until

from modelserver.engine.pools.channel import Channel
from modelserver.engine.pools.spec import Receiver
from modelserver.engine.wire.arena import LARGE, Arena
from modelserver.engine.wire.frames import FrameReader, encode, to_worker_decoder
from modelserver.engine.wire.messages import Answer, Ping, Pong, Predict, Result, Row, Stop


class Ends:
    """A channel, the other end of its socket, and what the channel told."""

    def __init__(self, limit, arena=None):
        self.messages = []
        self.lost = []
        receiver = Receiver(lambda m, tail: self.messages.append((m, bytes(tail))), self.lost.append)
        self.channel = Channel(receiver, limit, arena)
        self.ours, self.remote = socket.socketpair()

    async def connect(self):
        self.remote.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=self.ours)
        return self

    async def receive(self, count):
        """The next frames that the other end gets."""
        reader = FrameReader(to_worker_decoder)
        frames = []
        while len(frames) < count:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.remote, 1 << 16), 5)
            frames += [(message, bytes(tail)) for message, tail in reader.feed(data)]
        return frames

    async def send(self, *pieces):
        for piece in pieces:
            await asyncio.get_running_loop().sock_sendall(self.remote, piece)


@pytest.fixture
async def ends():
    made = await Ends(limit=10_000).connect()
    yield made
    made.channel.close()
    made.remote.close()
    await until(lambda: made.lost)


async def test_messages_and_large_bodies_arrive_as_sent(ends):
    ends.channel.send(Predict(1, [Row("a", 3), Row("b", 2)]), [b"one", b"tw"])
    ends.channel.send(Stop())
    await ends.send(*encode(Result(1, [Answer(2)], 0.5), [b"hi"]), *encode(Pong()))

    assert await ends.receive(2) == [(Predict(1, [Row("a", 3), Row("b", 2)]), b"onetw"), (Stop(), b"")]
    await until(lambda: len(ends.messages) == 2)
    assert ends.messages == [(Result(1, [Answer(2)], 0.5), b"hi"), (Pong(), b"")]

    body = bytes(1_000_000)
    ends.channel.send(Predict(1, [Row("a", len(body))]), [body])

    assert (await ends.receive(1))[0][1] == body


async def test_answers_sent_before_the_end_arrive_when_a_write_fails(ends):
    """A worker that dies as it gets another batch has answered the last one; its end breaks no rule."""
    answer = Result(1, [Answer(1_000)], 0.5)
    for piece in encode(answer, [bytes(1_000)]):
        ends.remote.sendall(piece)
    ends.remote.close()
    ends.channel.send(Predict(2, [Row("a", 3)]), [b"one"])

    await until(lambda: ends.lost)
    assert (ends.messages, ends.lost) == ([(answer, bytes(1_000))], [None])


@pytest.mark.parametrize("nonsense", [b"\x00" * 8, b"\xff" * 8, b"hello, this is no frame"])
async def test_nonsense_ends_the_connection(ends, nonsense):
    await ends.send(nonsense)
    await until(lambda: ends.lost)

    assert ends.lost[0] is not None
    assert "frame" in ends.lost[0] or "message" in ends.lost[0]


async def test_frame_over_the_limit_closes_the_channel(ends):
    await ends.send(encode(Result(1, [Answer(20_000)], 0.0), [bytes(20_000)])[0][:100])
    await until(lambda: ends.lost)

    assert "20" in str(ends.lost[0])


async def test_an_orderly_end_has_no_reason(ends):
    """An end without an error has no reason, and later messages are dropped."""
    ends.remote.close()
    await until(lambda: ends.lost)
    ends.channel.send(Ping())
    await asyncio.sleep(0)

    assert ends.lost == [None]


class SharingEnds(Ends):
    """A channel with an arena, and the worker's side of it."""

    def __init__(self):
        arena = Arena.create()
        self.descriptor = arena.descriptor
        self.remote_arena = Arena.adopt(os.dup(arena.descriptor))
        super().__init__(2 * LARGE, arena)

    @property
    def memory(self):
        """Bytes that the system gives to the arena."""
        return os.fstat(self.remote_arena.descriptor).st_blocks * 512


@pytest.fixture
async def sharing():
    made = SharingEnds()
    await made.connect()
    yield made
    made.channel.close()
    made.remote.close()
    await until(lambda: made.lost)
    made.remote_arena.close()


async def test_large_bodies_go_by_the_arena(sharing):
    body, content = os.urandom(LARGE), os.urandom(LARGE + 1)
    sharing.channel.send(Predict(1, [Row("a", len(body))]), [body])
    received = await asyncio.get_running_loop().sock_recv(sharing.remote, 1 << 20)
    reader = FrameReader(to_worker_decoder)
    reader.arena = sharing.remote_arena.incoming
    frames = [(message, bytes(tail)) for message, tail in reader.feed(received)]
    reply = encode(Result(1, [Answer(len(content))], 0.5), [content], sharing.remote_arena.outgoing)
    await sharing.send(*reply)
    await until(lambda: sharing.messages)

    assert frames == [(Predict(1, [Row("a", len(body))]), body)]
    assert sharing.messages == [(Result(1, [Answer(len(content))], 0.5), content)]
    assert max(len(received), len(b"".join(reply))) < 200


async def test_wrong_block_ends_the_connection(sharing):
    """A worker that names what is no block loses its connection, and nobody else anything (F70)."""
    (honest,) = encode(Result(1, [Answer(LARGE)], 0.5), [bytes(LARGE)], sharing.remote_arena.outgoing)
    await sharing.send(honest[:-8] + struct.pack("<Q", 1))
    await until(lambda: sharing.lost)

    assert sharing.messages == []
    assert sharing.lost == [f"no block: {LARGE} bytes at 1"]


async def test_rest_gives_memory_back(sharing):
    sharing.channel.send(Predict(1, [Row("a", LARGE)]), [bytes(LARGE)])
    sharing.channel.send(Ping())
    assert sharing.memory > LARGE

    sharing.remote_arena.incoming.free(0)
    sharing.channel.send(Stop())
    assert sharing.memory > LARGE
    sharing.channel.send(Ping())
    assert sharing.memory == 0


async def test_end_frees_the_arena(sharing):
    sharing.remote.close()
    await until(lambda: sharing.lost)
    sharing.channel.send(Predict(1, [Row("a", LARGE)]), [bytes(LARGE)])
    sharing.channel.send(Ping())

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(sharing.descriptor)
    assert sharing.memory == 0
