"""Clients that do not take the answers they asked for."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from modelserver.grpc.calls import Surroundings, _Sender, handlers
from modelserver.grpc.messages import message
from modelserver.grpc.statuses import tell_prediction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INFERENCE = "org.pytorch.serve.grpc.inference."
NAME = f"{INFERENCE}InferenceAPIsService"
PART = 1 << 18  # bytes, more than a client takes that does not read
TIMEOUT = 0.3  # seconds

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

    async def converse(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for asked in requests:
            async for part in self.talk(asked, context):
                yield part


@pytest.fixture
async def talker() -> Talker:
    return Talker()


@pytest.fixture
async def client(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[grpc.aio.Channel]:
    """Connected with a server whose streams are the talker's."""
    monkeypatch.setattr("modelserver.grpc.calls._SLOWEST", 1 << 24)
    methods = {
        "Ping": talker.talk,
        "Predictions": talker.talk,
        "StreamPredictions": talker.talk,
        "StreamPredictions2": talker.converse,
    }
    gate: Any = SimpleNamespace(check=lambda *_: None)
    around = Surroundings(lambda *said: talker.told.append(said[2]), gate, asyncio.Event(), TIMEOUT)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers(NAME, methods, tell_prediction, around),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


def stream(client: grpc.aio.Channel) -> Any:
    """A call whose answer comes in parts."""
    call = client.unary_stream(
        f"/{NAME}/StreamPredictions",
        request_serializer=_Asked.SerializeToString,
        response_deserializer=_Answer.FromString,
    )
    return call(_Asked(model_name="m"))


async def read_on(call: Any, taken: list[int]) -> None:
    """Notes the size of each further part."""
    while (part := await call.read()) is not grpc.aio.EOF:
        taken.append(len(part.prediction))


async def test_a_client_that_stops_to_read(
    client: grpc.aio.Channel, talker: Talker, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing more is made for it and the log says so; if it reads on, it is told why its answer ends."""
    call = stream(client)
    assert len((await call.read()).prediction) == PART
    await asyncio.wait_for(talker.ended.wait(), 20)
    made = talker.made

    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"{NAME}/StreamPredictions of 127.0.0.1:" in warnings[0]
    assert "its client reads nothing for" in warnings[0]
    taken = [PART]
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await read_on(call, taken)
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "reads too slowly" in failed.value.details()
    assert len(taken) == talker.made == made
    assert talker.told == [grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]]


async def test_a_conversation_that_is_not_heard(client: grpc.aio.Channel, talker: Talker) -> None:
    """A stream of requests ends so, too; a client that then leaves is one that has left."""
    converse = client.stream_stream(
        f"/{NAME}/StreamPredictions2",
        request_serializer=_Asked.SerializeToString,
        response_deserializer=_Answer.FromString,
    )
    call = converse()
    await call.write(_Asked(model_name="m"))
    await call.read()
    await asyncio.wait_for(talker.ended.wait(), 20)
    call.cancel()
    while not talker.told:  # noqa: ASYNC110 - it is not told of it
        await asyncio.sleep(0.001)

    assert talker.told == [grpc.StatusCode.CANCELLED.value[0]]


async def test_a_client_that_reads_slowly(talker: Talker) -> None:
    """One that takes each part in time gets its answer, however long all of them take."""
    taken: list[bytes] = []

    async def write(part: bytes) -> None:
        await asyncio.sleep(TIMEOUT / 25)
        taken.append(part)

    answers = talker.talk(None, None)
    sender = _Sender("s/m", SimpleNamespace(write=write), answers, TIMEOUT)  # type: ignore[arg-type]  # all it needs
    for _ in range(30):
        await sender.send((await anext(answers)).prediction)

    assert len(taken) == 30
    assert not talker.ended.is_set()


async def test_what_is_on_its_way_gets_time(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large part, and what may still lie in the client's buffers, is given the time that it takes."""
    monkeypatch.setattr("modelserver.grpc.calls._SLOWEST", PART)
    limits: list[float] = []
    monkeypatch.setattr(
        asyncio.get_running_loop(),
        "call_later",
        lambda seconds, *_: limits.append(seconds) or SimpleNamespace(cancel=lambda: None),
    )

    async def write(_: bytes) -> None:
        pass

    sender = _Sender("s/m", SimpleNamespace(write=write), talker.talk(None, None), TIMEOUT)  # type: ignore[arg-type]  # as above
    for size in (0, PART, 0, 64 * PART, 0):
        await sender.send(bytes(size))

    assert limits == [TIMEOUT + more for more in (0, 1, 1, 65, 32)]
