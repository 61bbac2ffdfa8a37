"""What calls are on the wire, where the library that clients use does not show it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.grpc.calling import GREETING, around_calls, asking, connected, framed, listening

from modelserver.grpc.calls import handlers
from modelserver.grpc.messages import message
from modelserver.grpc.statuses import tell_prediction
from modelserver.http2 import frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from modelserver.grpc.call import Method

NAME = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
_Asked = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Answer = message("org.pytorch.serve.grpc.inference.PredictionResponse")


def served(method: Any, told: list[int]) -> dict[str, Method]:
    """The service whose methods are all this one; ``told`` gets the codes with which calls end."""
    methods = dict.fromkeys(("Ping", "Predictions", "StreamPredictions", "StreamPredictions2"), method)
    return dict(handlers(NAME, methods, tell_prediction, around_calls(told)))


async def read(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """The next frame: its kind, its stream, its content."""
    first, _, number = frames.HEAD.unpack(await asyncio.wait_for(reader.readexactly(frames.HEAD.size), 20))
    return first & 0xFF, number, await reader.readexactly(first >> 8)


async def answer(_: Any, __: Any) -> Any:
    return _Answer(prediction=b"x")


@pytest.mark.xfail(reason="updates of windows count as an attack, however many calls they come with")
async def test_clients_that_update_their_windows() -> None:
    """A busy client sends some with each call, as the library does: two of them."""
    calls, told = 6000, list[int]()
    update = frames.window_update(0, 6)
    async with listening(served(answer, told)) as server, connected(server) as (reader, writer):
        writer.write(GREETING)
        for number in range(1, 2 * calls, 2):
            writer.write(update + update + asking(f"{NAME}/Predictions", b"", number))
        kinds: Counter[int] = Counter()
        while kinds[frames.DATA] < calls and frames.GOAWAY not in kinds:
            kinds[(await read(reader))[0]] += 1

    assert frames.GOAWAY not in kinds
    assert Counter(told) == {0: calls}


@pytest.mark.xfail(reason="bytes of a stream's messages are taken twice, as they come and as they are read")
async def test_windows_of_streams() -> None:
    """A client may send again as much as was read, and no more: its window does not grow without bounds."""
    sent, size = 50, 1 << 16

    async def converse(requests: Any, _: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            yield _Answer()

    body = framed(_Asked(input={"a": bytes(size)}).SerializeToString())
    async with listening(served(converse, [])) as server, connected(server) as (reader, writer):
        writer.write(GREETING + asking(f"{NAME}/StreamPredictions2", None))
        given = 0
        for _ in range(sent):
            for start in range(0, len(body), frames.DEFAULT_FRAME):
                writer.write(frames.frame(frames.DATA, 0, 1, body[start : start + frames.DEFAULT_FRAME]))
            kind = -1
            while kind != frames.DATA:
                kind, number, content = await read(reader)
                if kind == frames.WINDOW_UPDATE and number == 1:
                    given += int.from_bytes(content, "big")

    assert sent * len(body) // 2 < given <= sent * len(body)


@pytest.mark.xfail(reason="only clients end calls at their deadlines")
async def test_deadlines_pass_without_clients() -> None:
    """A call ends at its deadline, also if its client is silent."""
    told: list[int] = []

    async def wait(_: Any, __: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async with listening(served(wait, told)) as server, connected(server) as (_, writer):
        writer.write(GREETING + asking(f"{NAME}/StreamPredictions", b"", timeout="50m"))
        for _ in range(100):
            if told:
                break
            await asyncio.sleep(0.01)

    assert told == [4]
