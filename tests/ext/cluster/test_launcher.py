import asyncio
import json
import os
import weakref

import pytest
from tests.cycles import no_cycles
from tests.ext.cluster.conversation import Conversation, predict
from tests.waiting import until

from modelserver.engine.demand import Demand
from modelserver.engine.pools.spec import Ports, Ranks
from modelserver.engine.wire.messages import Answer, Loaded, LoadFailed, Result, Stop


@pytest.fixture
async def conversation(cluster, tmp_path):
    made = Conversation()
    await made.start(cluster, tmp_path)
    message, _ = await made.next()
    assert isinstance(message, Loaded)
    return made


async def test_a_worker_on_another_machine_answers(conversation):
    worker = conversation.worker
    for number, size in enumerate((3, 100_000, 1_000_000, 3_000_000)):
        body = os.urandom(size)
        worker.send(*predict(number, body))
        message, tail = await conversation.next()
        assert isinstance(message, Result)
        assert message.sequence == number
        assert message.answers == [Answer(2 * size, 200, message.answers[0].content_type)]
        assert tail == body * 2
    assert worker.node.name == "process-1"
    assert worker.pid > 0
    worker.send(*predict(4, b"print"))
    await conversation.next()
    worker.send(*predict(5, b"child"))
    await conversation.next()
    # The first report may be of a process that has hardly begun.
    await until(lambda: worker.node.of_family > worker.node.resident > 1 << 20)
    assert 0 < worker.round_trip < 1
    worker.send(Stop())
    assert await asyncio.wait_for(worker.wait(), 10) == "exited with status 0"
    assert worker.batches_started == 6
    assert "outoutout" in worker.last_output()
    assert "err" in worker.last_output()


async def test_worker_that_has_ended_leaves_nothing(cluster, conversation, tmp_path):
    """A reference cycle would keep its connections, 90 kB with TLS, until the next collection."""
    with no_cycles():
        second = Conversation()
        left = weakref.ref(await second.start(cluster, tmp_path / "second"))
        second.worker.send(Stop())
        await second.worker.wait()
        del second.worker
        await cluster.placer.placements[-1].task
        await until(lambda: left() is None)


# Sums what all ranks have, by the means of the standard library.
_SUMMING = """
import json, os, sys
from multiprocessing.connection import Client, Listener

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "OMP_NUM_THREADS")
own = [int(os.environ[name]) for name in names]

def handle(data, context):
    if data is None:
        if context.model_name == f"fails{rank}":
            raise ValueError("nothing to do here")
        return
    if bytes(data[0]["body"]) == b"leave%d" % rank:
        os._exit(3)
    print("rank", rank, "is here")
    if rank:
        while True:
            try:
                with Client(address) as client:
                    client.send(own)
                break
            except ConnectionRefusedError:
                pass
        return [b""]
    with Listener(address) as listener:
        told = [own]
        for _ in range(size - 1):
            with listener.accept() as other:
                told.append(other.recv())
    return [json.dumps(sorted(told))]
"""


async def ranks_on(cluster, folder, placement, name="m", processes=2):
    made = Conversation(_SUMMING, Ranks(processes, ports=Ports(29_500)), model_name=name)
    await made.start(cluster, folder, Demand(num_cpus=processes, placement=placement))
    return made


@pytest.mark.parametrize("cluster", ["plain"], indirect=True)
@pytest.mark.parametrize(
    ("placement", "expected"),
    [("spread", [[0, 1, 0, 2, 1], [0, 1, 1, 2, 1]]), ("pack", [[0, 2, 0, 1, 1], [1, 2, 0, 1, 1]])],
)
async def test_ranks_compute_together(cluster, tmp_path, placement, expected):
    """On one machine or several, ranks have numbers, connect to each other, and end on request."""
    conversation = await ranks_on(cluster, tmp_path, placement)
    worker = conversation.worker
    message, _ = await conversation.next()
    assert isinstance(message, Loaded)
    worker.send(*predict(0, b"x"))
    message, tail = await conversation.next()

    assert isinstance(message, Result)
    assert json.loads(tail) == expected
    assert (worker.pids, worker.recalls, worker.node.name) == ([], False, "process-1")
    assert 0 < worker.round_trip < 1
    worker.send(Stop())
    assert await asyncio.wait_for(worker.wait(), 10) == "exited with status 0"
    assert worker.batches_started == 1
    assert "rank 0 is here" in worker.last_output()


@pytest.mark.parametrize("cluster", ["plain"], indirect=True)
async def test_rank_that_cannot_load_ends_all(cluster, tmp_path):
    conversation = await ranks_on(cluster, tmp_path, "pack", "fails1")
    message, _ = await conversation.next()
    assert isinstance(message, LoadFailed)
    assert message.message.startswith("Rank 1: ")
    assert "nothing to do here" in message.message
    assert "lost rank" in await asyncio.wait_for(conversation.worker.wait(), 10)
