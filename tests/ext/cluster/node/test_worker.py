from __future__ import annotations

import asyncio
import os
import random
import socket
from typing import TYPE_CHECKING

import pytest
import uvloop
from tests.ext.cluster.conversation import Conversation, predict
from tests.ext.cluster.loops import on_loop

from modelserver.engine.wire.arena import create, read_begun
from modelserver.engine.wire.frames import encode
from modelserver.engine.wire.greeting import invite
from modelserver.engine.wire.messages import (
    ASYNC,
    CONTINUOUS,
    Cancelled,
    Loaded,
    Parts,
    Ping,
    Pong,
    Predict,
    Proceed,
    Result,
    Row,
    Stop,
)
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import Cluster
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET
from modelserver.ext.cluster.node.worker import connect, hand_over, receive_invitation
from modelserver.ext.cluster.processes import ProcessPlacer
from modelserver.surface.tls.throwaway import make_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from modelserver.engine.wire.arena import Arena


@pytest.fixture
def memory() -> Iterator[Arena]:
    made = create()
    if made is None:
        pytest.skip("memory cannot be shared here")
    yield made
    made.close()


def test_the_ticket_and_the_memory_are_handed_over(memory: Arena) -> None:
    """A worker gets both from its agent, by a descriptor; programs that it starts do not get the memory."""
    agent, worker = socket.socketpair()
    invitation = invite("h", 1, certificate="C" * 8000, path="/run/x.sock")
    with agent, worker:
        hand_over(agent, invitation, memory)
        got, adopted = receive_invitation(worker)
        assert got == invitation
        assert adopted is not None
        assert not os.get_inheritable(adopted.descriptor)
        assert os.fstat(adopted.descriptor).st_ino == os.fstat(memory.descriptor).st_ino
        adopted.close()
        hand_over(agent, invitation, None)
        assert receive_invitation(worker) == (invitation, None)


@pytest.mark.parametrize("kind", ["tls", "plain", "local"])
async def test_a_workers_connection(
    kind: str, bound: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Arena
) -> None:
    """It carries frames; the memory tells which batches have begun, and is for rows on one machine only."""
    monkeypatch.setenv(LOCAL_SOCKET, "1" if kind == "local" else "0")
    certificate = make_certificate([]) if kind == "tls" else None
    hub = Hub(bound, "127.0.0.1", certificate=certificate, folder=tmp_path)
    await hub.open()
    streams: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(
            asyncio.StreamReader(), lambda _, writer: streams.set_result(writer)
        )

    channel = await asyncio.to_thread(connect, hub.invite(protocol), memory)
    writer = await streams
    writer.write(b"".join(encode(*predict(0, b"x" * 100))))
    message, tail = await asyncio.to_thread(lambda: next(channel.messages()))
    assert isinstance(message, Predict)
    assert len(tail) == 100
    assert channel.begin(0)
    assert read_begun(memory.descriptor) == 1
    assert (channel._arena is not None) == (kind == "local")
    channel.close()
    getattr(channel._connection, "_connection", channel._connection).close()
    writer.transport.abort()
    hub.close()


# -- real workers, over TLS, on the server's kind of loop

_ECHO = "def handle(data, context):\n    return data and [bytes(row['body']) * 2 for row in data]\n"

_PARTS = """
from modelserver_handlers.streaming import send_intermediate_predict_response as send

def handle(data, context):
    if data is None:
        return
    body = bytes(data[0]["body"])
    for number in range(20):
        send([bytes([number]) + body], context.request_ids, "more", 200, context)
    return [b"end"]
"""

_ASYNC = """
import asyncio, random

async def handle(data, context):
    if data is None:
        return
    body = bytes(data[0]["body"])
    await asyncio.sleep(60 if body[:1] == b"!" else random.random() / 20)
    return [body * 2]
"""

_CONTINUOUS = """
def handle(data, context):
    if data is None:
        return
    left = context.cache = getattr(context, "cache", {})
    ids = list(context.request_ids.values())
    for id, row in zip(ids, data):
        if row:
            left[id] = [3, bytes(row["body"])]
    context.stopping_criteria = []
    answers = []
    for id in ids:
        left[id][0] -= 1
        context.stopping_criteria.append(lambda _, id=id: left[id][0] <= 0)
        answers.append(left[id][1])
    return answers
"""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = uvloop.new_event_loop()
    yield made
    made.run_until_complete(asyncio.sleep(0.02))
    made.close()


@pytest.fixture
def cluster(
    loop: asyncio.AbstractEventLoop, bound: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    monkeypatch.setenv(LOCAL_SOCKET, "0")
    hub, placer = Hub(bound, "127.0.0.1", certificate=make_certificate([]), folder=tmp_path), ProcessPlacer()
    loop.run_until_complete(hub.open())
    yield Cluster(hub, placer, placement_timeout=30.0, lost_after=5.0)

    async def close() -> None:
        await placer.close()
        hub.close()

    loop.run_until_complete(close())


async def loaded(cluster: Cluster, folder: Path, handler: str, mode: str = "") -> Conversation:
    made = Conversation(handler, max_response_size=1 << 26, mode=mode)
    await made.start(cluster, folder)
    assert isinstance((await made.next())[0], Loaded)
    return made


async def stopped(conversation: Conversation) -> None:
    """The worker has nothing left to say, and ends in order."""
    conversation.worker.send(Ping())
    assert await conversation.next() == (Pong(), b"")
    conversation.worker.send(Stop())
    assert await asyncio.wait_for(conversation.worker.wait(), 15) == "exited with status 0"
    assert conversation.messages.empty()


@pytest.mark.slow
@on_loop
async def test_batches_of_any_size(cluster: Cluster, tmp_path: Path) -> None:
    """Around the size of a TLS record and up to 30 MB, one after the other and several ahead."""
    conversation = await loaded(cluster, tmp_path, _ECHO)
    sizes = [1, 2, 16_300, 16_383, 16_384, 16_385, 65_536, 300_000, 1_000_000, 30_000_000, 5]
    bodies = [os.urandom(size) for size in sizes]
    for number, body in enumerate(bodies):
        conversation.worker.send(*predict(number, body))
        conversation.worker.send(Cancelled(number + 1000, [0]))
    for number, body in enumerate(bodies):
        message, tail = await conversation.next()
        assert message.sequence == number
        assert tail == body * 2
    await stopped(conversation)


@pytest.mark.slow
@on_loop
async def test_streams(cluster: Cluster, tmp_path: Path) -> None:
    """Parts arrive in order; where the worker waits for the client, it goes on by the server's word."""
    conversation = await loaded(cluster, tmp_path, _PARTS)
    body = os.urandom(500_000)
    conversation.worker.send(*predict(0, body))
    conversation.worker.send(*predict(1, b""))
    for number in (0, 1):
        parts, waited = [], 0
        while not isinstance((got := await conversation.next())[0], Result):
            message, tail = got
            assert isinstance(message, Parts)
            parts.append(tail)
            if message.wait:
                waited += 1
                conversation.worker.send(Proceed(number))
        expected = body if number == 0 else b""
        assert b"".join(parts) == b"".join(bytes([n]) + expected for n in range(20))
        assert waited > 0 or number == 1
    await stopped(conversation)


@pytest.mark.slow
@on_loop
async def test_asynchronous_handlers(cluster: Cluster, tmp_path: Path) -> None:
    """Bursts of requests are all answered, whatever records they arrive in; cancelled ones, too."""
    conversation = await loaded(cluster, tmp_path, _ASYNC, ASYNC)
    chance = random.Random(7)
    number = 0
    for _ in range(6):
        burst = {}
        for _ in range(40):
            body = b"x" + os.urandom(chance.choice([0, 5, 8_000, 16_000, 100_000]))
            burst[number] = body
            conversation.worker.send(*predict(number, body))
            number += 1
        cancelled = number
        conversation.worker.send(*predict(cancelled, b"!"))
        conversation.worker.send(Cancelled(cancelled, [0]))
        number += 1
        for _ in range(len(burst) + 1):
            message, tail = await conversation.next()
            if message.sequence == cancelled:
                assert message.answers[0].failed
            else:
                assert tail == burst.pop(message.sequence) * 2
        assert not burst
    await stopped(conversation)


@pytest.mark.slow
@on_loop
async def test_continuous_batching(cluster: Cluster, tmp_path: Path) -> None:
    """Requests join and leave, each with all of its parts; cancelled ones leave early."""
    conversation = await loaded(cluster, tmp_path, _CONTINUOUS, CONTINUOUS)
    bodies = {number: os.urandom(size) for number, size in enumerate([1, 20_000, 200_000, 16_384, 3] * 4)}
    got = dict.fromkeys(bodies, b"")
    for number, body in bodies.items():
        conversation.worker.send(Predict(number, [Row(f"r{number}", len(body))]), [body])
    results = 0
    while results < len(bodies):
        message, tail = await conversation.next()
        got[message.sequence] += tail
        results += isinstance(message, Result)
    assert got == {number: body * 3 for number, body in bodies.items()}
    conversation.worker.send(*predict(50, b"x"))
    conversation.worker.send(Cancelled(50, [0]))
    while not isinstance((await conversation.next())[0], Result):
        pass
    await stopped(conversation)
