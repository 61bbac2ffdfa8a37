import asyncio
import itertools
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from tests.waiting import until

from modelserver.engine.batching.request import Batch, Parcel, Request
from modelserver.engine.pools import ranks as ranks_module
from modelserver.engine.pools import worker as worker_module
from modelserver.engine.pools.gate import StartGate
from modelserver.engine.pools.spec import WorkerState, backoff
from modelserver.engine.pools.worker import Worker
from modelserver.engine.wire import messages as wire
from modelserver.errors import GpuFailed, OutOfMemory, ResponseTimeout, StartFailed, WorkerDied

pytestmark = pytest.mark.usefixtures("simulated_time")


class Owner:
    def __init__(self):
        self.ready = 0
        self.answered = []
        self.lost = []
        self.streamed = []
        self.returned = []
        self.failed = []

    def worker_ready(self, worker, seconds):
        self.ready += 1

    def worker_answered(self, worker, batch, result, tail):
        self.answered.append(batch)

    def worker_streamed(self, worker, message, tail):
        (sequence,) = message.sequences
        if (batch := worker.flights.streamed(sequence)) is not None:
            self.streamed.append((batch, bytes(tail)))

    def worker_returned(self, worker, batch):
        self.returned.append(batch)

    def worker_failed(self, worker, error):
        self.failed.append(type(error))

    def worker_lost(self, worker, running, unbegun, error):
        self.lost.append((running, unbegun, error))


def batch():
    return Batch([Parcel(Request("id", [wire.Row("id", 4)], [b"body"], 0.0), 0, 1)], 1, "size")


@pytest.fixture
def owner():
    return Owner()


@pytest.fixture
async def make(stage, spec, times, owner):
    made = []

    def worker(spec=spec, **changed):
        made.append(Worker(9000, "W-9000-m", spec, replace(times, **changed), owner))
        return made[-1]

    yield worker
    for each in made:
        await each.stop(0.01)


@pytest.fixture
async def worker(make):
    return make()


@pytest.fixture
def start(make, stage, spec):
    """Makes a worker whose process has loaded; returns both."""

    async def loaded(concurrency=0, **changed):
        worker = make(replace(spec, concurrency=concurrency), **changed)
        process = await stage.enter()
        process.load()
        return worker, process

    return loaded


async def test_worker_loads_then_serves_with_one_batch_in_reserve(stage, owner, worker):
    process = await stage.enter()
    assert (worker.state, worker.pid) == (WorkerState.LOADING, 1000)
    assert not worker.has_room

    precision = {"asked": "int8", "used": "int8", "why": "all agree"}
    process.load(splits=True, precision=precision)
    await worker.first_load
    assert (worker.state, worker.idle, worker.model.splits, owner.ready) == (WorkerState.READY, True, True, 1)
    assert worker.model.precision == precision

    first, second = batch(), batch()
    worker.flights.send(first)
    assert (worker.idle, worker.has_room) == (False, True)
    worker.flights.send(second)
    assert not worker.has_room
    process.answer()
    process.answer()
    assert owner.answered == [first, second]
    assert worker.idle


@pytest.mark.parametrize(
    ("permanent", "state", "processes"), [(True, WorkerState.FAILED, 1), (False, WorkerState.LOADING, 2)]
)
async def test_load_failure_is_final_or_tried_again(stage, permanent, state, processes, worker):
    """A failure that no new try can mend is final; others are tried again (F40)."""
    process = await stage.enter()
    process.output = "Traceback"
    process.fail_to_load("ImportError: no x", status=507, permanent=permanent)
    with pytest.raises(StartFailed) as caught:
        await worker.first_load

    assert caught.value.status == 507
    assert caught.value.message == "ImportError: no x Its last output was:\nTraceback"
    await stage.enter(processes)
    assert worker.state is state
    assert len(stage.processes) == processes


async def test_process_that_asks_for_variables_gets_another_one(stage, worker):
    process = await stage.enter()
    process.fail_to_load("LoadAgain: no graphs", variables={"WITHOUT": "graphs"})
    await stage.enter(2)

    assert "WITHOUT" not in stage.specs[0].extra_environment
    assert stage.specs[1].extra_environment["WITHOUT"] == "graphs"
    assert (worker.failures.loads, worker.first_load.done()) == (0, False)

    stage.processes[1].fail_to_load("LoadAgain: no graphs", variables={"WITHOUT": "graphs"})
    with pytest.raises(StartFailed):
        await worker.first_load


_TRACEBACK = "Traceback (most recent call last):\nRuntimeError: see above."


@pytest.mark.parametrize(
    ("status", "output"),
    [
        (507, "(E pid=7) Free memory on device cuda:0 (3/79 GiB) on startup is less than desired GPU memory"),
        (507, "(E pid=7) Available memory on node 0 (1/9 GiB) on startup is less than desired CPU memory"),
        (507, "(E pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (507, "(E pid=7) No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
        (507, "(E pid=7) [enforce fail] DefaultCPUAllocator: can't allocate memory: 1 of 2 bytes"),
        (500, "(E pid=7) ValueError: unsupported architecture"),
        # What a process has said before its last words has not ended the load.
        (500, f"torch.OutOfMemoryError: CUDA out of memory.\nit did not fit, taking 4\n{_TRACEBACK}"),
        (500, f"(E pid=7) no available memory for x\n(E pid=7) a\n(E pid=7) ValueError: b\n{_TRACEBACK}"),
        # The engine has its last words above those of the worker.
        (507, f"(E pid=7) torch.OutOfMemoryError: CUDA out of memory.\n[rank0]: Warning: left\n{_TRACEBACK}"),
    ],
)
async def test_load_that_fails_for_want_of_memory_is_out_of_memory(status, output, stage, worker):
    """What its processes have printed is the reason; the worker only knows that the engine has ended."""
    process = await stage.enter()
    process.output = output
    process.fail_to_load("RuntimeError: the engine has not started")
    with pytest.raises(StartFailed) as caught:
        await worker.first_load

    assert caught.value.status == status
    assert output in caught.value.message


async def test_death_while_loading_fails_the_first_load(stage, worker):
    (await stage.enter()).exit("was killed by SIGSEGV")
    with pytest.raises(StartFailed) as caught:
        await worker.first_load

    assert caught.value.message == "The worker was killed by SIGSEGV while loading. It printed nothing."


async def test_process_that_does_not_load_in_time_is_killed(make, stage):
    worker = make(startup=0.01)
    with pytest.raises(StartFailed, match=r"startup_timeout=0\.01 s"):
        await worker.first_load

    assert stage.processes[0].killed


@pytest.mark.parametrize("error", [OSError(11, "temporarily unavailable"), SystemError("AST constructor")])
async def test_start_that_fails_is_tried_again(make, stage, error):
    """A process that cannot even be started, or what fails within the server: with the usual pauses (F56)."""
    stage.error = error
    worker = make()
    with pytest.raises(StartFailed, match=r"could not be started: .*(unavailable|AST constructor)"):
        await worker.first_load
    stage.error = None
    (await stage.enter()).load()

    assert worker.state is WorkerState.READY
    assert stage.sleeps[0] == 1.0


async def test_bug_in_supervision_ends_the_worker_as_failed(make, stage, owner, monkeypatch):
    def live(worker):
        raise OverflowError("integer out of range")

    monkeypatch.setattr(Worker, "_live", live)
    worker = make()
    with pytest.raises(StartFailed, match="cannot be run: integer out of range"):
        await worker.first_load
    await stage.settle()

    assert worker.state is WorkerState.FAILED
    assert len(owner.lost) == 1


async def test_failed_loads_are_tried_again_after_pauses(stage, worker):
    """Failures are followed by pauses from the row of reference 18.4, until one try succeeds (F41)."""
    for number in (1, 2):
        (await stage.enter(number)).fail_to_load("not yet")
    (await stage.enter(3)).load()

    assert worker.state is WorkerState.READY
    assert stage.sleeps == [1.0, 1.0]
    assert (worker.failure, worker.failures.since) == ("", None)
    assert worker.first_load.exception() is not None


async def test_the_time_of_the_next_try_is_known(make, stage, monkeypatch):
    monkeypatch.setattr(worker_module, "backoff", lambda: iter([0.0, 60.0]))
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(time=lambda: 1000.0))
    worker = make()
    (await stage.enter()).fail_to_load("not yet")
    (await stage.enter(2)).fail_to_load("not yet")
    assert worker.failures.next_try == 0.0
    await stage.settle()

    assert (worker.failures.next_try, worker.failures.loads) == (1060.0, 2)


@pytest.mark.parametrize("max_retry", [-1.0, 0.0], ids=["window is over", "none is wanted"])
async def test_worker_is_abandoned_past_the_retry_window(make, stage, max_retry):
    """It counts as unhealthy; ``maxRetryTimeoutInSec: 0`` means that the first failure is the last."""
    worker = make(max_retry=max_retry)
    (await stage.enter()).fail_to_load("never")
    await stage.settle()

    assert (worker.state, worker.healthy) == (WorkerState.FAILED, False)
    assert (len(stage.processes), stage.sleeps) == (1, [])


async def test_worker_without_a_machine_is_not_abandoned(make, stage, spec):
    """A worker that waits for another machine is not given up, however long; once it had one, its model has
    the whole retry window. Until there is a process, no request may wait for it.
    """
    stage.error = OSError("no machine was found")
    worker = make(max_retry=30.0)
    worker._spec = replace(spec, launcher=stage.launch_elsewhere)
    with pytest.raises(StartFailed, match="no machine was found"):
        await asyncio.shield(worker.first_load)
    assert not worker.may_serve
    worker.failures.since -= 3600.0
    stage.error = None
    (await stage.enter()).fail_to_load("not yet")
    process = await stage.enter(2)
    assert worker.state is WorkerState.LOADING
    process.load()
    assert worker.state is WorkerState.READY


@pytest.mark.parametrize(
    ("for_memory", "error", "failure"),
    [
        (True, OutOfMemory, ". It printed nothing. Its memory limit was reached."),
        (False, WorkerDied, ". It printed nothing."),
        (None, WorkerDied, " (perhaps out of memory). It printed nothing."),
    ],
)
async def test_kill_for_memory_is_reported_as_out_of_memory(stage, owner, for_memory, error, failure, worker):
    """SIGKILL that the worker's group counted as one for memory: 507. Any other or unknown one: 500 (F43)."""
    process = await stage.enter()
    process.for_memory = for_memory
    process.load()
    worker.flights.send(batch())
    process.exit("was killed by SIGKILL")
    await stage.enter(2)

    assert type(owner.lost[0][2]) is error
    assert worker.failure == "The worker was killed by SIGKILL" + failure


async def test_process_with_a_broken_gpu_is_replaced_without_a_pause(start, stage, owner):
    """The process answers what it runs, and gets nothing more; what it has not begun goes elsewhere at once.
    Another process takes over without a pause. Why stays known (F75).
    """
    worker, process = await start()
    worker.flights.send(running := batch())
    worker.flights.send(waiting := batch())
    process.say(wire.Broken("AcceleratorError: CUDA error"))
    state = worker.state
    process.answer(b"why", status=500)
    process.exit("exited with status 1")
    (await stage.enter(2)).load()

    assert (state, worker.state) == (WorkerState.LOADING, WorkerState.READY)
    assert (owner.failed, owner.returned, owner.answered) == ([GpuFailed], [waiting], [running])
    assert all((lost, unbegun) == (None, []) for lost, unbegun, _ in owner.lost)
    assert stage.sleeps == []
    assert worker.failure == ""
    assert worker.failures.last_end[1] == "Its GPU could not be used any more: AcceleratorError: CUDA error"


@pytest.mark.parametrize(
    ("output", "more", "lost"),
    [
        ("Traceback", "", WorkerDied),
        ("torch.OutOfMemoryError: CUDA out of memory.", " Its memory was exhausted.", OutOfMemory),
    ],
)
async def test_worker_without_its_engine_says_why(start, output, more, lost, stage, owner):
    worker, process = await start()
    worker.flights.send(batch())
    process.output = output
    process.say(wire.Broken("the engine has ended", of_gpu=False))
    process.exit("exited with status 1")
    (await stage.enter(2)).load()

    assert worker.failures.last_end[1] == f"the engine has ended{more}"
    assert [type(error) for *_, error in owner.lost] == owner.failed == [lost]


async def test_gpu_that_breaks_again_and_again_starts_after_a_pause(stage, worker):
    for number, answers in enumerate((0, 1, 0, 0), 1):
        process = await stage.enter(number)
        process.load()
        for _ in range(answers):
            worker.flights.send(batch())
            process.answer()
        process.say(wire.Broken("CUDA error"))
        process.exit()
    await stage.enter(5)

    assert stage.sleeps == [1.0, 1.0]


async def test_rows_that_fit_into_a_gpu_are_learned_by_each_process(start, stage, caplog):
    caplog.set_level("INFO", "modelserver.workers")
    worker, process = await start()
    process.say(wire.Fitting(4))
    most = [worker.most_rows]
    process.say(wire.Fitting(0))
    most.append(worker.most_rows)
    process.say(wire.Fitting(2))
    process.exit()
    await stage.enter(2)

    assert [*most, worker.most_rows] == [4, 0, 0]
    assert "Worker W-9000-m: more than 4 rows exhaust its GPU's memory, batches are split" in caplog.messages
    assert "Worker W-9000-m: whole batches fit into its GPU's memory again" in caplog.messages


async def test_process_past_its_response_timeout_is_killed_and_replaced(start, stage, owner):
    worker, process = await start(response=0.02)
    running, waiting = batch(), batch()
    worker.flights.send(running)
    worker.flights.send(waiting)
    await stage.enter(2)
    lost, unbegun, error = owner.lost[0]

    assert (lost, unbegun) == (running, [waiting])
    assert isinstance(error, ResponseTimeout)
    assert process.killed
    assert stage.sleeps == []
    assert "response_timeout=0.02" in worker.failure
    process.say(*part(0, b"late"))
    process.answer()
    assert (owner.streamed, owner.answered) == ([], [])


async def test_process_that_gives_signs_of_life_is_left_alone(start, stage):
    _, process = await start(silence=30.0)
    for _ in range(10):
        await asyncio.sleep(10.0)
        process.say(wire.Pong())
    assert not process.killed
    assert any(isinstance(message, wire.Ping) for message, _ in process.received)

    await asyncio.sleep(60.0)
    assert process.killed
    await stage.enter(2)


async def test_the_gpu_is_the_one_that_the_model_uses(make, stage, spec):
    """Until a model has loaded it is the assigned one; of a handler that does not say what it uses, too."""
    worker = make(replace(spec, load=msgspec.structs.replace(spec.load, gpu_id=1)))
    process = await stage.enter()
    assert (worker.gpu, worker.is_on_cpu) == (1, False)
    process.load(device="cpu")
    assert (worker.gpu, worker.is_on_cpu) == (None, True)
    process.exit("exited with status 1")
    again = await stage.enter(2)
    assert worker.gpu == 1
    again.load(device="cuda:1")

    assert (worker.gpu, worker.is_on_cpu) == (1, False)


async def test_stop_while_loading_fails_the_first_load(stage, worker):
    await worker.stop(0.01)

    with pytest.raises(StartFailed, match="stopped before it had loaded"):
        await worker.first_load


async def test_stop_while_loading_waits_for_nothing(stage, worker):
    process = await stage.enter()
    process.send = lambda message, bodies=(): None  # it reads nothing while it loads
    await asyncio.wait_for(worker.stop(60.0), 2.0)

    assert process.killed


@pytest.fixture
def held_up(stage, monkeypatch):
    """Processes say that they have loaded before their start ends, which waits for this event."""
    proceed = asyncio.Event()

    async def launch(*arguments):
        process = await stage.launch(*arguments)
        await proceed.wait()
        process.load(splits=True)
        return process

    monkeypatch.setattr(ranks_module, "launch", launch)
    return proceed


async def test_a_process_that_has_loaded_before_its_start_ends(stage, owner, held_up, worker):
    held_up.set()
    process = await stage.enter()
    worker.flights.send(batch())
    process.answer()

    assert worker.first_load.done()
    assert (worker.idle, worker.model.splits, owner.ready, len(owner.answered)) == (True, True, 1, 1)


async def test_a_start_that_ends_after_the_stop_leaves_nothing_to_do(stage, owner, held_up, worker):
    await until(lambda: stage.processes)
    stopping = asyncio.create_task(worker.stop())
    await stage.settle()
    held_up.set()
    await stopping
    await stage.settle()

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert stage.processes[0].killed
    assert (worker.state, worker.process, owner.ready) == (WorkerState.UNLOADING, None, 0)


async def test_answer_to_another_batch_kills_the_process(start, stage, owner):
    worker, process = await start()
    running = batch()
    worker.flights.send(running)
    process.say(wire.Result(running.sequence + 7, [wire.Answer(0)], 0.01))
    await stage.settle()

    assert process.killed
    assert owner.answered == []
    assert owner.lost[0][0] is running
    assert "unexpected answer" in worker.failure


async def test_killed_worker_takes_nothing(start):
    worker, _ = await start()
    assert worker.idle
    worker.kill("for the test")

    assert not worker.idle
    assert not worker.has_room


def test_backoff_follows_fibonacci_up_to_a_minute():
    assert list(itertools.islice(backoff(), 12)) == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 60, 60]


async def test_loading_takes_turns(stage, spec, times, owner):
    """Through one gate, the next worker is launched when the one before it has loaded or has failed (F57)."""
    spec = replace(spec, gate=StartGate(limit=1))
    workers = [Worker(9000 + n, f"W-{9000 + n}-m", spec, times, owner) for n in range(3)]
    first = await stage.enter()
    assert len(stage.processes) == 1

    first.load()
    second = await stage.enter(2)
    assert workers[0].state is WorkerState.READY
    second.exit("exited with status 1")
    await stage.enter(3)
    for worker in workers:
        await worker.stop(0.01)


def part(sequence, text):
    return wire.Parts([sequence], [0], [wire.Answer(len(text))]), [text]


async def test_each_part_restarts_the_response_timeout(start, stage, owner):
    """The response timeout is the time from part to part (reference 6.6)."""
    worker, process = await start(response=0.2)
    worker.flights.send(batch())
    for _ in range(6):
        await asyncio.sleep(0.05)
        process.say(*part(0, b"x"))
    assert owner.lost == []
    await stage.enter(2)

    assert isinstance(owner.lost[0][2], ResponseTimeout)


async def test_concurrent_batches_are_answered_in_any_order(start, owner):
    worker, process = await start(concurrency=3)
    batches = [batch() for _ in range(3)]
    for each in batches:
        assert worker.has_room
        worker.flights.send(each)
    assert not worker.has_room
    for sequence in (2, 0):
        process.say(wire.Result(sequence, [wire.Answer(1)], 10.0), [b"x"])
    process.say(wire.Result(2, [wire.Answer(1)], 10.0), [b"x"])
    process.say(wire.Result(1, [wire.Answer(1)], 10.0), [b"x"])

    assert owner.answered == [batches[2], batches[0], batches[1]]
    assert (worker.flights.capacity, process.killed) == (3, False)


async def test_only_the_overdue_of_concurrent_batches_is_abandoned(start, owner):
    worker, process = await start(concurrency=3, response=0.06)
    late, lively = batch(), batch()
    worker.flights.send(late)
    worker.flights.send(lively)
    while not owner.lost:
        process.say(*part(1, b"x"))
        await asyncio.sleep(0.005)

    (lost, unbegun, error) = owner.lost[0]
    assert (lost, unbegun, list(worker.flights.in_flight)) == (late, [], [lively])
    assert isinstance(error, ResponseTimeout)
    assert wire.Cancelled(0, [0]) in [message for message, _ in process.received]
    assert wire.Ping() in [message for message, _ in process.received]
    process.say(wire.Result(0, [wire.Answer(1)], 1.0), [b"x"])
    assert owner.answered == []
    assert not process.killed


async def test_silent_process_loses_all_that_it_ran(start, stage, owner):
    worker, process = await start(concurrency=3, response=0.03)
    batches = [batch(), batch()]
    for each in batches:
        worker.flights.send(each)
    await stage.enter(2)

    assert [(lost, unbegun) for lost, unbegun, _ in owner.lost[:2]] == [(each, []) for each in batches]
    assert process.killed


@pytest.mark.parametrize("ends", [True, False])
async def test_process_is_replaced_when_overdue_calls_take_all_places(start, owner, ends):
    """It gives signs of life, but the threads in which it computes are lost."""
    worker, process = await start(concurrency=2, response=0.06)
    late = [batch(), batch()]
    for each in late:
        worker.flights.send(each)
    loop = asyncio.get_running_loop()
    end = loop.time() + 2 * worker_module.CALL_GRACE
    while not process.killed and loop.time() < end:
        process.say(wire.Pong())
        if ends and len(owner.lost) == 2:
            process.say(wire.Result(0, [wire.Answer(1)], 1.0), [b"x"])
        await asyncio.sleep(0.005)

    assert [lost for lost, _, _ in owner.lost[:2]] == late
    assert process.killed is not ends


async def test_broken_gpu_fails_concurrent_batches_with_a_general_reason(start, stage, owner):
    worker, process = await start(concurrency=3)
    worker.flights.send(batch())
    process.say(wire.Broken("AcceleratorError: CUDA error"))
    process.exit()
    await stage.enter(2)
    error = owner.lost[0][2]

    assert isinstance(error, WorkerDied)
    assert (error.status, error.message, error.cause) == (
        500,
        wire.GPU_BROKEN,
        "AcceleratorError: CUDA error",
    )
