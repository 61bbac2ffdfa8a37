from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from modelserver.wire.frames import FrameReader, encode, to_worker_decoder
from modelserver.wire.messages import Answer, Ping, Pong, Predict, Result, Row, Stop
from modelserver.workers.channel import Channel


class Ends:
    """A channel, the other end of its socket, and what the channel told."""

    def __init__(self, limit: int) -> None:
        self.messages: list[tuple[Any, bytes]] = []
        self.lost: list[str | None] = []
        self.channel = Channel(
            lambda m, tail: self.messages.append((m, bytes(tail))), self.lost.append, limit
        )
        self.ours, self.theirs = socket.socketpair()

    async def connect(self) -> Ends:
        self.theirs.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=self.ours)
        return self

    async def receive(self, count: int) -> list[tuple[Any, bytes]]:
        """The next frames that the other end gets."""
        reader = FrameReader(to_worker_decoder)
        frames: list[tuple[Any, bytes]] = []
        while len(frames) < count:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16), 5)
            frames += [(message, bytes(tail)) for message, tail in reader.feed(data)]
        return frames

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await asyncio.get_running_loop().sock_sendall(self.theirs, piece)


async def until(happened: Any) -> None:
    for _ in range(5000):
        if happened():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("waited in vain")


@pytest.fixture
async def ends() -> Any:
    made = await Ends(limit=10_000).connect()
    yield made
    made.channel.close()
    made.theirs.close()
    await until(lambda: made.lost)


async def test_there_and_back(ends: Ends) -> None:
    """Messages and the bytes behind them arrive as they were sent."""
    ends.channel.send(Predict(1, [Row("a", 3), Row("b", 2)]), [b"one", b"tw"])
    ends.channel.send(Stop())
    await ends.send(*encode(Result(1, [Answer(2)], 0.5), [b"hi"]), *encode(Pong()))

    assert await ends.receive(2) == [(Predict(1, [Row("a", 3), Row("b", 2)]), b"onetw"), (Stop(), b"")]
    await until(lambda: len(ends.messages) == 2)
    assert ends.messages == [(Result(1, [Answer(2)], 0.5), b"hi"), (Pong(), b"")]


async def test_large_bodies(ends: Ends) -> None:
    """Bodies larger than the socket's buffer arrive whole."""
    body = bytes(1_000_000)
    ends.channel.send(Predict(1, [Row("a", len(body))]), [body])

    assert (await ends.receive(1))[0][1] == body


@pytest.mark.parametrize("nonsense", [b"\x00" * 8, b"\xff" * 8, b"hello, this is no frame"])
async def test_nonsense(ends: Ends, nonsense: bytes) -> None:
    """What is no frame ends the connection, with the reason."""
    await ends.send(nonsense)
    await until(lambda: ends.lost)

    assert ends.lost[0] is not None
    assert "frame" in ends.lost[0] or "message" in ends.lost[0]


async def test_frame_over_the_limit(ends: Ends) -> None:
    """A frame over the limit ends the connection before it is collected."""
    await ends.send(encode(Result(1, [Answer(20_000)], 0.0), [bytes(20_000)])[0][:100])
    await until(lambda: ends.lost)

    assert "20" in str(ends.lost[0])


async def test_orderly_end(ends: Ends) -> None:
    """An end without an error has no reason, and later messages are dropped."""
    ends.theirs.close()
    await until(lambda: ends.lost)
    ends.channel.send(Ping())
    await asyncio.sleep(0)

    assert ends.lost == [None]
