"""Workers that span several processes, played by the test, or devices."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from modelserver.engine.pools import ranks as ranks_module
from modelserver.engine.pools.ranks import launch_worker
from modelserver.engine.pools.spec import Ranks, Receiver, visible
from modelserver.engine.wire import messages as wire


class Listener:
    """The events that the supervisor of the group receives."""

    def __init__(self):
        self.messages = []
        self.lost = []
        self.receiver = Receiver(self.hear, self.lost.append)

    def hear(self, message, _tail):
        self.messages.append(message)


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def start(stage, spec, listener, monkeypatch):
    """Starts a group of played processes."""
    monkeypatch.setattr(ranks_module, "launch", stage.launch)

    async def begin(processes=2, gpu_id=None, **fields):
        load = msgspec.structs.replace(spec.load, gpu_id=gpu_id)
        special = replace(spec, load=load, threads=4, ranks=Ranks(processes, **fields))
        return await launch_worker(special, "w", listener.receiver)

    return begin


def received(process, kind):
    """How many messages of a kind a process got."""
    return sum(isinstance(message, kind) for message, _ in process.received)


def batch(sequence=0):
    return wire.Predict(sequence, [wire.Row("r", 1)])


async def test_each_rank_gets_its_variables(start, stage):
    """Each process finds what torchrun would tell it, and a port to meet at (reference 18.1)."""
    await start(3)
    environments = [spec.extra_environment for spec in stage.specs]

    assert [e["RANK"] for e in environments] == [e["LOCAL_RANK"] for e in environments] == ["0", "1", "2"]
    assert {e["WORLD_SIZE"] for e in environments} == {e["LOCAL_WORLD_SIZE"] for e in environments} == {"3"}
    assert {e["MASTER_ADDR"] for e in environments} == {"127.0.0.1"}
    assert len({e["MASTER_PORT"] for e in environments}) == 1
    loads = [spec.load for spec in stage.specs]
    assert [(load.rank, load.ranks, load.gpu_id) for load in loads] == [(rank, 3, None) for rank in range(3)]
    assert {(spec.threads, spec.spawner, spec.load.isolate, spec.ranks) for spec in stage.specs} == {
        (1, None, False, None)
    }


async def test_each_rank_gets_its_device(start, stage, monkeypatch):
    """They see their worker's devices only, and each is given the one of its rank (reference 18.3)."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    await start(2, gpu_id=2, groups={0: (0, 1), 2: (2, 3)}, threads=7)

    assert [spec.load.gpu_id for spec in stage.specs] == [0, 1]
    assert {spec.extra_environment["CUDA_VISIBLE_DEVICES"] for spec in stage.specs} == {"2,3"}
    assert {spec.extra_environment["OMP_NUM_THREADS"] for spec in stage.specs} == {"7"}


async def test_one_process_gets_several_devices(start, stage):
    await start(0, gpu_id=2, groups={2: (2, 3)})
    (spec,) = stage.specs

    assert spec.load.gpu_id == 0
    assert spec.extra_environment["CUDA_VISIBLE_DEVICES"].count(",") == 1
    assert "RANK" not in spec.extra_environment


async def test_one_rank_tries_again_in_parts(start, stage):
    await start(1)
    assert [spec.load.isolate for spec in stage.specs] == [True]


@pytest.mark.parametrize(
    ("server", "display"), [({}, "1,3"), ({"CUDA_VISIBLE_DEVICES": "4,5, 6,GPU-x"}, "5,GPU-x")]
)
def test_visible_devices_are_the_servers(server, display):
    assert visible((1, 3), server) == {"CUDA_VISIBLE_DEVICES": display}
    assert visible((), server) == {}


async def test_loaded_when_all_are(start, stage, listener):
    """The slowest rank counts; what the handler is, rank 0 says."""
    await start(2)
    one, two = stage.processes
    two.load(seconds=5.0)
    assert listener.messages == []
    one.load(splits=True, seconds=1.0)

    assert listener.messages == [wire.Loaded(splits=True, seconds=5.0)]


async def test_one_that_cannot_load(start, stage, listener):
    group = await start(3)
    one, two, three = stage.processes
    two.output = "no such file"
    two.fail_to_load("broken", permanent=True)
    three.say(wire.LoadFailed("me too"))

    assert listener.messages == [wire.LoadFailed("Rank 1: broken", permanent=True)]
    assert (one.killed, three.killed) == (True, True)
    assert await group.wait()
    assert group.last_output() == "no such file"


async def test_one_that_cannot_be_started(spec, stage, listener, monkeypatch):
    async def launch(special, *arguments):
        if special.load.rank == 1:
            raise OSError("no more processes")
        return await stage.launch(special, *arguments)

    monkeypatch.setattr(ranks_module, "launch", launch)
    with pytest.raises(OSError, match="no more processes"):
        await launch_worker(replace(spec, ranks=Ranks(2)), "w", listener.receiver)

    assert [process.killed for process in stage.processes] == [True]


@pytest.mark.parametrize(("broadcast", "batches"), [(True, [1, 1]), (False, [1, 0])])
async def test_who_gets_batches(start, stage, broadcast, batches):
    """Every rank, with ``pp`` rank 0 alone; what a client's leaving changes, none (reference 18.1)."""
    group = await start(2, broadcast=broadcast)
    group.send(batch(), [b"x"])
    group.send(wire.Ping())
    group.send(wire.Cancelled(0, [0]))

    assert [received(process, wire.Predict) for process in stage.processes] == batches
    assert [received(process, wire.Ping) for process in stage.processes] == [1, 1]
    assert [received(process, wire.Cancelled) for process in stage.processes] == [0, 0]


async def test_only_rank_0_answers(start, stage, listener):
    await start(2)
    one, two = stage.processes
    two.say(wire.Result(0, [], 0.1))
    two.say(wire.Pong())
    result = wire.Result(0, [wire.Answer(1)], 0.1)
    one.say(result, [b"x"])
    one.say(wire.Pong())

    assert listener.messages == [result, wire.Pong()]


async def test_the_gpu_of_any_rank_may_break(start, stage, listener):
    """The worker is not usable without it (F75)."""
    await start(2)
    stage.processes[1].say(wire.Broken("CUDA error"))

    assert listener.messages == [wire.Broken("CUDA error")]


async def test_a_batch_that_fails_at_another_rank(start, stage, listener, monkeypatch):
    """Rank 0 may wait for it for ever: it gets a while, then the worker is replaced."""
    monkeypatch.setattr(ranks_module, "FAILED_GRACE", 0.01)
    group = await start(2)
    one, two = stage.processes
    failed = [wire.Answer(0, failed=True)]
    two.say(wire.Result(0, failed, 0.1))
    one.say(wire.Result(0, failed, 0.1))
    await asyncio.sleep(0.03)
    assert two.killed is False

    two.say(wire.Result(1, failed, 0.1))

    assert await group.wait() == "lost rank 1, which was killed by SIGKILL"
    assert one.killed


@pytest.mark.parametrize("rank", [0, 1, 2])
async def test_the_end_of_one_is_the_end_of_all(start, stage, listener, rank):
    group = await start(3)
    stage.processes[rank].output = "last words"
    stage.processes[rank].exit("was killed by SIGSEGV")

    assert await group.wait() == f"lost rank {rank}, which was killed by SIGSEGV"
    assert all(process.killed for process in stage.processes)
    assert group.last_output() == "last words"
    await stage.settle()
    assert listener.lost == [None]


async def test_an_end_in_order_takes_its_time(start, stage, listener):
    """Told to stop, a rank that has nothing to do leaves; rank 0 still answers what it has."""
    group = await start(2)
    one, two = stage.processes
    group.send(batch(), [b"x"])
    two.answer()
    group.send(wire.Stop())
    assert two.killed is False
    await stage.settle()
    assert (one.killed, listener.lost) == (False, [])
    one.answer(b"y")

    assert await group.wait() == "exited with status 0"
    assert [type(message) for message in listener.messages] == [wire.Result]
    await stage.settle()
    assert listener.lost == [None]


async def test_a_kill_reaches_every_rank(start, stage):
    group = await start(2)
    group.kill()

    assert await group.wait() == "was killed by SIGKILL"
    assert group.pid == group.pids[0] == 1000
    assert group.pids == [1000, 1001]


async def test_what_is_no_message(start, stage, listener):
    first, second = (await start(2)).receivers()
    second.on_lost("no frame")
    first.on_lost(None)

    assert listener.lost == ["rank 1: no frame"]
