"""Clients that do not take the answers they asked for."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tests.ext.grpc.calling import GREETING, Listening, around_calls, asking, connected, listening

from modelserver.ext.grpc.calls import handlers
from modelserver.ext.grpc.http2 import frames
from modelserver.ext.grpc.http2.limits import Limits
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import tell_prediction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INFERENCE = "org.pytorch.serve.grpc.inference."
NAME = f"{INFERENCE}InferenceAPIsService"
STREAM = f"{NAME}/StreamPredictions"
PART = 1 << 18  # bytes, more than a client takes that does not read
TIMEOUT = 60.0  # seconds
# Lets the server send as much as the streams take.
WIDE = frames.window_update(0, 1 << 24)

_Asked = message(f"{INFERENCE}PredictionsRequest")
_Answer = message(f"{INFERENCE}PredictionResponse")


class Talker:
    """A model that answers in parts without end, and how many of them it has made."""

    def __init__(self) -> None:
        self.made = 0
        self.ended = asyncio.Event()
        self.told: list[int] = []

    async def talk(self, _: Any, __: Any) -> AsyncIterator[Any]:
        try:
            while True:
                self.made += 1
                yield _Answer(prediction=bytes(PART))
        finally:
            self.ended.set()

    async def converse(self, requests: Any, call: Any) -> AsyncIterator[Any]:
        async for asked in requests:
            async for part in self.talk(asked, call):
                yield part


@pytest.fixture
async def talker() -> Talker:
    return Talker()


@pytest.fixture
async def server(talker: Talker) -> AsyncIterator[Listening]:
    """Its streams are the talker's."""
    methods = {
        "Ping": talker.talk,
        "Predictions": talker.talk,
        "StreamPredictions": talker.talk,
        "StreamPredictions2": talker.converse,
    }
    served = handlers(NAME, methods, tell_prediction, around_calls(talker.told))
    async with listening(served, Limits(send_timeout=TIMEOUT)) as made:
        yield made


@pytest.fixture
async def client(server: Listening) -> AsyncIterator[grpc.aio.Channel]:
    """Connected with the server."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel


def stream(client: grpc.aio.Channel) -> Any:
    """A call whose answer comes in parts."""
    call: Any = client.unary_stream(
        f"/{STREAM}",
        request_serializer=_Asked.SerializeToString,
        response_deserializer=_Answer.FromString,
    )
    return call(_Asked(model_name="m"))


def conversation(client: grpc.aio.Channel) -> Any:
    """A stream of requests."""
    call: Any = client.stream_stream(
        f"/{NAME}/StreamPredictions2",
        request_serializer=_Asked.SerializeToString,
        response_deserializer=_Answer.FromString,
    )
    return call()


class Clock:
    """The loop's, which can be put forward."""

    def __init__(self, server: Listening) -> None:
        self._server = server
        self._real = asyncio.get_running_loop().time
        self._more = 0.0

    def time(self) -> float:
        return self._real() + self._more

    async def forward(self, seconds: float) -> None:
        """Puts it forward, and has the server look at its connections and do what follows from that.

        Sockets have taken all that they are to take before.
        """
        connections = self._server.listener.connections
        while any(each._paused_since is not None for each in connections):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        self._more += seconds
        self._server.listener.check()
        for _ in range(10):
            await asyncio.sleep(0)

    async def until_it_ends(self, talker: Talker) -> int:
        """Waits until what is stuck has ended; how many parts were made by then."""
        made = 0
        while not talker.ended.is_set():
            made = talker.made
            await self.forward(TIMEOUT + 1)
        return made


@pytest.fixture
async def clock(server: Listening, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the server."""
    made = Clock(server)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", made.time)
    return made


async def read_on(call: Any, taken: list[int]) -> None:
    """Notes the size of each further part."""
    while (part := await call.read()) is not grpc.aio.EOF:
        taken.append(len(part.prediction))


async def test_a_client_that_stops_to_read(
    client: grpc.aio.Channel, talker: Talker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing more is made for it once its time is up, and the log says so; if it reads on, it gets no more
    than was made, and is told why its answer ends.
    """
    call = stream(client)
    assert len((await call.read()).prediction) == PART
    await clock.forward(TIMEOUT / 2)
    assert not talker.ended.is_set()
    made = await clock.until_it_ends(talker)

    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"{STREAM} to 127.0.0.1:" in warnings[0]
    assert "its client reads too little for" in warnings[0]
    taken = [PART]
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await read_on(call, taken)
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(taken) <= talker.made == made
    assert set(taken) == {PART}
    assert talker.told == [grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]]


async def test_a_conversation_that_is_not_heard(
    client: grpc.aio.Channel, talker: Talker, clock: Clock
) -> None:
    """A stream of requests ends so, too."""
    call = conversation(client)
    await call.write(_Asked(model_name="m"))
    await call.read()
    made = await clock.until_it_ends(talker)

    assert talker.made == made
    assert talker.told == [grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]]


async def test_a_client_that_leaves_a_conversation(client: grpc.aio.Channel, talker: Talker) -> None:
    """One that does not read, and then leaves, is one that has left; nothing more is made for it."""
    call = conversation(client)
    await call.write(_Asked(model_name="m"))
    await call.read()
    call.cancel()
    await asyncio.wait_for(talker.ended.wait(), 20)
    while not talker.told:  # noqa: ASYNC110 - it is not told of it
        await asyncio.sleep(0.001)

    assert talker.told == [grpc.StatusCode.CANCELLED.value[0]]


@pytest.mark.parametrize("piece", [1 << 14, PART], ids=["pieces", "parts"])
async def test_a_client_that_reads_slowly(
    server: Listening, talker: Talker, clock: Clock, piece: int
) -> None:
    """One that takes a tenth of what waits in its time gets its answer, however long all of it takes."""
    async with connected(server) as (reader, writer):
        writer.write(GREETING + asking(STREAM, b""))
        got = await _data(reader, frames.DEFAULT_WINDOW)
        for _ in range(30):
            await clock.forward(TIMEOUT / 2)
            writer.write(frames.window_update(1, piece) + frames.window_update(0, piece))
            got += await _data(reader, piece)
        assert not talker.ended.is_set()
        made = await clock.until_it_ends(talker)

    assert got == frames.DEFAULT_WINDOW + 30 * piece
    assert talker.made == made


async def test_what_is_on_its_way_gets_time(server: Listening, talker: Talker, clock: Clock) -> None:
    """What may still lie in the client's buffers, a large part too, is given the time that it takes: a second
    for each 64 KiB.
    """
    size = 8 << 20
    async with connected(server) as (reader, writer):
        writer.write(GREETING + WIDE + asking(STREAM, b"") + frames.window_update(1, size))
        await _data(reader, frames.DEFAULT_WINDOW + size)
        await clock.forward(TIMEOUT + 120)
        assert not talker.ended.is_set()
        await clock.forward(20)
        assert talker.ended.is_set()


async def test_a_new_answer_has_its_time(server: Listening, talker: Talker, clock: Clock) -> None:
    """That another answer of the connection is not read takes nothing from it."""
    async with connected(server) as (reader, writer):
        writer.write(GREETING + WIDE + asking(STREAM, b""))
        await _data(reader, frames.DEFAULT_WINDOW)
        await clock.forward(TIMEOUT - 1)
        writer.write(asking(STREAM, b"", 3))
        await _data(reader, frames.DEFAULT_WINDOW)
        await clock.forward(2)
        writer.write(asking(STREAM, b"", 5))
        await _data(reader, frames.DEFAULT_WINDOW)

        assert len(talker.told) == 1


async def _data(reader: asyncio.StreamReader, size: int) -> int:
    """Reads until so many bytes of messages have come; how many they are."""
    found = 0
    while found < size:
        first, _, _ = frames.HEAD.unpack(await asyncio.wait_for(reader.readexactly(frames.HEAD.size), 20))
        await reader.readexactly(first >> 8)
        found += (first >> 8) * (first & 0xFF == frames.DATA)
    return found
