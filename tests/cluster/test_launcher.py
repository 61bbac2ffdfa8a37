from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest
from tests.cluster.conversation import Conversation, predict

from modelserver.cluster.processes import ProcessPlacer
from modelserver.wire.messages import Answer, Loaded, Recalled, Result, Stop

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.cluster.launcher import Cluster


@pytest.fixture
async def conversation(cluster: Cluster, tmp_path: Path) -> Conversation:
    """A worker that has loaded its model."""
    made = Conversation()
    await made.start(cluster, tmp_path)
    message, _ = await made.next()
    assert isinstance(message, Loaded)
    return made


async def test_a_worker_on_another_machine_answers(conversation: Conversation) -> None:
    """It answers batches of any size: over the network, encrypted or not, and by shared memory."""
    worker = conversation.worker
    for number, size in enumerate((3, 100_000, 1_000_000, 3_000_000)):
        body = os.urandom(size)
        worker.send(*predict(number, body))
        message, tail = await conversation.next()
        assert isinstance(message, Result)
        assert message.sequence == number
        assert message.answers == [Answer(2 * size, 200, message.answers[0].content_type)]
        assert tail == body * 2
    assert worker.node is not None
    assert worker.node.name == "process-1"
    assert worker.pid > 0
    worker.send(Stop())
    assert await asyncio.wait_for(worker.wait(), 10) == "exited with status 0"
    assert worker.begun == 4


async def test_its_output_and_its_memory_are_told(conversation: Conversation) -> None:
    """What it prints arrives with the server, and its size; the round trip to its machine is measured."""
    worker = conversation.worker
    worker.send(*predict(0, b"print"))
    await conversation.next()
    # The first report may be of a process that has hardly begun; the test's own time limits this.
    while worker.node.resident <= 1 << 20:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    worker.send(Stop())
    await asyncio.wait_for(worker.wait(), 10)
    assert "outoutout" in worker.last_output()
    assert "err" in worker.last_output()
    assert worker.node is not None
    assert 0 < worker.round_trip < 1


async def test_a_crash_is_told_with_what_had_begun(conversation: Conversation) -> None:
    """When the process ends, the server learns how, and which batches had begun."""
    worker = conversation.worker
    worker.send(*predict(0, b"crash"))
    worker.send(*predict(1, b"x"))
    assert await asyncio.wait_for(worker.wait(), 10) == "exited with status 7"
    assert worker.begun == 1


async def test_batches_are_taken_back(conversation: Conversation) -> None:
    """A batch that waits behind a slow one can be taken back, and does not run there."""
    worker = conversation.worker
    assert worker.recalls
    worker.send(*predict(0, b"sleep"))
    worker.send(*predict(1, b"x"))
    await asyncio.sleep(0.5)
    worker.recall(2)
    assert await conversation.next() == (Recalled(1, 2), b"")
    worker.kill()
    assert "SIGKILL" in await asyncio.wait_for(worker.wait(), 10)
    assert worker.begun == 1


@pytest.mark.parametrize("cluster", ["plain"], indirect=True)
async def test_a_killed_agent_takes_its_worker_with_it(conversation: Conversation, cluster: Cluster) -> None:
    """Without its agent a worker ends, and the server notices at once."""
    placer = cluster.placer
    assert isinstance(placer, ProcessPlacer)
    os.kill(placer.placements[0].pid, signal.SIGKILL)
    how = await asyncio.wait_for(conversation.worker.wait(), 2)
    assert how == "is out of reach: the connection to its node process-1 is lost"
    await asyncio.wait_for(conversation.lost, 2)


@pytest.mark.parametrize("cluster", ["plain"], indirect=True)
async def test_a_frozen_agent_is_given_up(conversation: Conversation, cluster: Cluster) -> None:
    """A machine that says nothing for the time of the lease is given up."""
    placer = cluster.placer
    assert isinstance(placer, ProcessPlacer)
    pid = placer.placements[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        how = await asyncio.wait_for(conversation.worker.wait(), 10)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert how == "is out of reach: nothing was heard of its node process-1 for 4 s"
