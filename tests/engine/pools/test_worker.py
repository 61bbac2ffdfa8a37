from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.waiting import until

from modelserver.engine.batching.request import Batch, Parcel, Request
from modelserver.engine.pools import worker as worker_module
from modelserver.engine.pools.gate import StartGate
from modelserver.engine.pools.output import quote
from modelserver.engine.pools.spec import WorkerState, WorkerTimes, backoff
from modelserver.engine.pools.worker import MAX_IN_FLIGHT, Worker
from modelserver.engine.wire.messages import (
    GPU_BROKEN,
    Answer,
    Broken,
    Cancelled,
    Fitting,
    Parts,
    Ping,
    Pong,
    Recalled,
    Result,
    Row,
    Stop,
)
from modelserver.errors import ModelServerError, OutOfMemory, ResponseTimeout, StartFailed, WorkerDied

if TYPE_CHECKING:
    from modelserver.engine.pools.spec import WorkerSpec


class Owner:
    """Keeps what its worker told."""

    def __init__(self) -> None:
        self.ready = 0
        self.answered: list[Batch] = []
        self.lost: list[tuple[Batch | None, list[Batch], ModelServerError]] = []
        self.streamed: list[tuple[Batch, bytes]] = []
        self.returned: list[Batch] = []
        self.broken = 0

    def worker_ready(self, worker: Worker, seconds: float) -> None:
        self.ready += 1

    def worker_answered(self, worker: Worker, batch: Batch, result: Result, tail: memoryview) -> None:
        self.answered.append(batch)

    def worker_streamed(self, worker: Worker, batch: Batch, message: Parts, tail: memoryview) -> None:
        self.streamed.append((batch, bytes(tail)))

    def worker_returned(self, worker: Worker, batch: Batch) -> None:
        self.returned.append(batch)

    def worker_broken(self, worker: Worker) -> None:
        self.broken += 1

    def worker_lost(
        self, worker: Worker, running: Batch | None, unbegun: list[Batch], error: ModelServerError
    ) -> None:
        self.lost.append((running, unbegun, error))


def batch() -> Batch:
    return Batch([Parcel(Request("id", [Row("id", 4)], [b"body"], 0.0), 0, 1)], 1, "size")


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def make(stage: Any, spec: WorkerSpec, times: WorkerTimes, owner: Owner) -> Any:
    """Makes workers that are stopped after the test."""
    made: list[Worker] = []

    def worker(spec: WorkerSpec = spec, **changed: float) -> Worker:
        made.append(Worker(9000, "W-9000-m", spec, replace(times, **changed), owner))
        return made[-1]

    yield worker
    for each in made:
        await each.stop(0.01)


async def test_load_and_serve(make: Any, stage: Any, owner: Owner) -> None:
    """A worker is sent its model, then batches; it is idle when it has none, and has room
    for one in reserve.
    """
    worker = make()
    process = await stage.enter()
    assert (worker.state, worker.pid) == (WorkerState.LOADING, 1000)
    assert not worker.has_room

    precision = {"asked": "int8", "used": "int8", "why": "all agree"}
    process.load(splits=True, precision=precision)
    await worker.first_load
    assert (worker.state, worker.idle, worker.splits, owner.ready) == (WorkerState.READY, True, True, 1)
    assert worker.precision == precision

    first, second = batch(), batch()
    worker.send(first)
    assert (worker.idle, worker.has_room) == (False, True)
    worker.send(second)
    assert not worker.has_room
    process.answer()
    process.answer()
    assert owner.answered == [first, second]
    assert worker.idle


@pytest.mark.parametrize(
    ("permanent", "state", "processes"), [(True, WorkerState.FAILED, 1), (False, WorkerState.LOADING, 2)]
)
async def test_load_failure(
    make: Any, stage: Any, permanent: bool, state: WorkerState, processes: int
) -> None:
    """A failure that no new try can mend is final; others are tried again (F40)."""
    worker = make()
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


async def test_loading_again_with_other_variables(make: Any, stage: Any) -> None:
    """A process that asks for another one with more variables gets it, and the first load has not failed; if
    they are there already, it has.
    """
    worker = make()
    process = await stage.enter()
    process.fail_to_load("LoadAgain: no graphs", variables={"WITHOUT": "graphs"})
    await stage.enter(2)

    assert "WITHOUT" not in stage.specs[0].extra_environment
    assert stage.specs[1].extra_environment["WITHOUT"] == "graphs"
    assert (worker.load_failures, worker.first_load.done()) == (0, False)

    stage.processes[1].fail_to_load("LoadAgain: no graphs", variables={"WITHOUT": "graphs"})
    with pytest.raises(StartFailed):
        await worker.first_load


async def test_death_while_loading(make: Any, stage: Any) -> None:
    """A process that dies while loading fails the first load with how it ended and what it printed."""
    worker = make()
    (await stage.enter()).exit("was killed by SIGSEGV")
    with pytest.raises(StartFailed) as caught:
        await worker.first_load

    assert caught.value.message == "The worker was killed by SIGSEGV while loading. It printed nothing."


async def test_startup_timeout(make: Any, stage: Any) -> None:
    """A process that does not load in time is killed."""
    worker = make(startup=0.01)
    with pytest.raises(StartFailed, match=r"startup_timeout=0\.01 s"):
        await worker.first_load

    assert stage.processes[0].killed


async def test_process_that_cannot_start(make: Any, stage: Any) -> None:
    """A process that cannot even be started is a failed load, and is tried again (F56)."""
    stage.error = OSError(11, "Resource temporarily unavailable")
    worker = make()
    with pytest.raises(StartFailed, match="could not be started"):
        await worker.first_load
    stage.error = None
    (await stage.enter()).load()

    assert worker.state is WorkerState.READY


async def test_bug_in_supervision(
    make: Any, stage: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody expected ends the worker as FAILED; nobody waits for it in vain."""

    def live(worker: Worker) -> Any:
        raise OverflowError("integer out of range")

    monkeypatch.setattr(Worker, "_live", live)
    worker = make()
    with pytest.raises(StartFailed, match="cannot be run: integer out of range"):
        await worker.first_load
    await stage.settle()

    assert worker.state is WorkerState.FAILED
    assert len(owner.lost) == 1


async def test_a_start_that_fails_within_the_server(
    make: Any, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails before user code runs is tried again, with the usual pauses."""
    with monkeypatch.context() as patched:

        async def launch(*arguments: Any) -> Any:
            raise SystemError("AST constructor recursion depth mismatch")

        patched.setattr(worker_module, "launch", launch)
        worker = make()
        with pytest.raises(StartFailed, match="could not be started: AST constructor"):
            await worker.first_load
    (await stage.enter()).load()

    assert worker.state is WorkerState.READY
    assert stage.sleeps[0] == 1.0


async def test_third_try(make: Any, stage: Any) -> None:
    """Failures are followed by pauses from the row of reference 18.4, until one try succeeds (F41)."""
    worker = make()
    for number in (1, 2):
        (await stage.enter(number)).fail_to_load("not yet")
    (await stage.enter(3)).load()

    assert worker.state is WorkerState.READY
    assert stage.sleeps == [1.0, 1.0]
    assert (worker.failure, worker.failing_since) == ("", None)
    assert worker.first_load.exception() is not None


async def test_the_time_of_the_next_try_is_known(
    make: Any, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a worker waits for it."""
    monkeypatch.setattr(worker_module, "backoff", lambda: iter([0.0, 60.0]))
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(time=lambda: 1000.0))
    worker = make()
    (await stage.enter()).fail_to_load("not yet")
    (await stage.enter(2)).fail_to_load("not yet")
    assert worker.next_try == 0.0
    await stage.settle()

    assert (worker.next_try, worker.load_failures) == (1060.0, 2)


async def test_given_up(make: Any, stage: Any) -> None:
    """Past the retry window no more is tried, and the worker counts as unhealthy."""
    worker = make(max_retry=-1.0)
    (await stage.enter()).fail_to_load("never")
    await stage.enter()

    assert worker.state is WorkerState.FAILED
    assert not worker.healthy
    assert len(stage.processes) == 1


async def test_no_machine_for_long(make: Any, stage: Any, spec: WorkerSpec) -> None:
    """A worker that waits for another machine is not given up, however long; once it had one, its model has
    the whole retry window. Until there is a process, no request may wait for it.
    """
    stage.error = OSError("no machine was found")
    worker = make(max_retry=30.0)
    worker._spec = replace(spec, launcher=stage.launch)
    with pytest.raises(StartFailed, match="no machine was found"):
        await asyncio.shield(worker.first_load)
    assert not worker.may_serve
    worker.failing_since -= 3600.0
    stage.error = None
    (await stage.enter()).fail_to_load("not yet")
    process = await stage.enter(2)
    assert worker.state is WorkerState.LOADING
    process.load()
    assert worker.state is WorkerState.READY


async def test_death_while_serving(make: Any, stage: Any, owner: Owner) -> None:
    """When the process dies, what ran is lost and what was not begun may go elsewhere;
    another one takes over (F39).
    """
    worker = make()
    process = await stage.enter()
    process.load()
    running, waiting = batch(), batch()
    worker.send(running)
    worker.send(waiting)
    process.output = "oops"
    process.exit("exited with status 3")
    await stage.enter(2)
    lost, unbegun, error = owner.lost[0]

    assert (lost, unbegun) == (running, [waiting])
    assert isinstance(error, WorkerDied)
    assert worker.failure == "The worker exited with status 3. Its last output was:\noops"
    assert worker.healthy
    assert (worker.id, worker.pid) == (9000, 1001)


@pytest.mark.parametrize(
    ("for_memory", "error", "failure"),
    [
        (True, OutOfMemory, ". It printed nothing. Its memory limit was reached."),
        (False, WorkerDied, ". It printed nothing."),
        (None, WorkerDied, " (perhaps out of memory). It printed nothing."),
    ],
)
async def test_killed(
    make: Any,
    stage: Any,
    owner: Owner,
    for_memory: bool | None,
    error: type,
    failure: str,
) -> None:
    """A SIGKILL that the worker's control group counted as one for memory is told as 507, one that was not,
    or of which that is not known, as 500 (F43).
    """
    worker = make()
    process = await stage.enter()
    process.for_memory = for_memory
    process.load()
    worker.send(batch())
    process.exit("was killed by SIGKILL")
    await stage.enter(2)

    assert type(owner.lost[0][2]) is error
    assert worker.failure == "The worker was killed by SIGKILL" + failure


async def test_a_broken_gpu(make: Any, stage: Any, owner: Owner) -> None:
    """The process answers what it runs, and gets nothing more; what it has not begun goes elsewhere at once.
    Another process takes over without a pause. Why stays known (F75).
    """
    worker = make()
    process = await stage.enter()
    process.load()
    worker.send(running := batch())
    worker.send(waiting := batch())
    process.say(Broken("AcceleratorError: CUDA error"))
    state = worker.state
    process.answer(b"why", status=500)
    process.exit("exited with status 1")
    (await stage.enter(2)).load()

    assert (state, worker.state) == (WorkerState.LOADING, WorkerState.READY)
    assert (owner.broken, owner.returned, owner.answered) == (1, [waiting], [running])
    assert all((lost, unbegun) == (None, []) for lost, unbegun, _ in owner.lost)
    assert stage.sleeps == []
    assert worker.failure == ""
    assert worker.last_end is not None
    assert worker.last_end[1] == "Its GPU could not be used any more: AcceleratorError: CUDA error"


async def test_a_gpu_that_breaks_again_and_again(make: Any, stage: Any) -> None:
    """Before anything is answered: as with other failures, the next process starts after a pause."""
    worker = make()
    for number, answers in enumerate((0, 1, 0, 0), 1):
        process = await stage.enter(number)
        process.load()
        for _ in range(answers):
            worker.send(batch())
            process.answer()
        process.say(Broken("CUDA error"))
        process.exit()
    await stage.enter(5)

    assert stage.sleeps == [1.0, 1.0]


async def test_rows_that_fit_into_a_gpu(make: Any, stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A process learns them; the next one anew."""
    caplog.set_level("INFO", "modelserver.workers")
    worker = make()
    process = await stage.enter()
    process.load()
    process.say(Fitting(4))
    most = [worker.most_rows]
    process.say(Fitting(0))
    most.append(worker.most_rows)
    process.say(Fitting(2))
    process.exit()
    await stage.enter(2)

    assert [*most, worker.most_rows] == [4, 0, 0]
    assert "Worker W-9000-m: more than 4 rows exhaust its GPU's memory, batches are split" in caplog.messages
    assert "Worker W-9000-m: whole batches fit into its GPU's memory again" in caplog.messages


@pytest.mark.parametrize(("begun", "lost"), [(0, 0), (1, 1), (2, 2)])
async def test_only_what_was_begun_is_lost(
    make: Any, stage: Any, owner: Owner, begun: int, lost: int
) -> None:
    """A process that ended tells how many batches it had begun: others may go elsewhere (F39)."""
    worker = make()
    process = await stage.enter()
    process.load()
    sent = [batch(), batch()]
    for each in sent:
        worker.send(each)
    process.begun = begun
    process.exit("was killed by SIGKILL")
    await stage.enter(2)
    running = [each for each, _, _ in owner.lost if each is not None]

    assert running == sent[:lost]
    assert owner.lost[-1][1] == sent[lost:]


@pytest.mark.parametrize(("idempotent", "lost"), [(False, 2), (True, 0)])
async def test_all_that_an_unreachable_worker_had_counts_as_begun(
    stage: Any, spec: WorkerSpec, times: WorkerTimes, owner: Owner, idempotent: bool, lost: int
) -> None:
    """Nobody knows what it had begun when it was lost: nothing runs again, unless it may run twice."""
    stage.away = 0.001
    worker = Worker(9000, "W-9000-m", replace(spec, idempotent=idempotent), times, owner)
    process = await stage.enter()
    process.load()
    sent = [batch(), batch()]
    for each in sent:
        worker.send(each)
    process.exit("is out of reach")
    await stage.enter(2)
    await worker.stop(0.01)
    running = [each for each, _, _ in owner.lost if each is not None]

    assert running == sent[:lost]
    assert [each for _, unbegun, _ in owner.lost for each in unbegun] == sent[lost:]


async def test_what_took_too_long_elsewhere_is_not_tried_again(
    stage: Any, spec: WorkerSpec, times: WorkerTimes, owner: Owner
) -> None:
    """Of batches that may run twice, the one past the response timeout fails; the next goes elsewhere."""
    stage.away = 0.001
    times = replace(times, response=0.02)
    worker = Worker(9000, "W-9000-m", replace(spec, idempotent=True), times, owner)
    (await stage.enter()).load()
    sent = [batch(), batch()]
    for each in sent:
        worker.send(each)
    await stage.enter(2)
    await worker.stop(0.01)

    assert owner.lost[0][:2] == (sent[0], sent[1:])


async def test_batches_come_back_from_elsewhere_later(make: Any, stage: Any, owner: Owner) -> None:
    """They are asked for once, and come back once; those answered meanwhile do not come back."""
    stage.away = 0.001
    worker = make()
    process = await stage.enter()
    process.load()
    sent = [batch() for _ in range(4)]
    for each in sent:
        worker.send(each)
    assert worker.take_back() == []
    assert worker.take_back() == []
    assert process.recalled == [4]
    process.answer()
    process.answer()
    assert worker.take_back() == []
    process.say(Recalled(3, 4))
    process.say(Recalled(3, 4))

    assert owner.answered == sent[:2]
    assert owner.returned == sent[3:]
    assert list(worker.in_flight) == sent[2:3]


async def test_none_leaves_early_while_batches_come_back(make: Any, stage: Any) -> None:
    """Not even after an answer, until the machine has said which are coming; then all is as before."""
    stage.away = 0.001
    worker = make()
    process = await stage.enter()
    process.load()
    for _ in range(3):
        worker.send(batch())
    worker.take_back()
    process.answer(seconds=0.0001)
    assert (worker.foreseen, worker.shared_capacity) == (False, 1)
    process.say(Recalled(2, 3))
    process.answer(seconds=0.0001)
    assert worker.foreseen
    worker.send(batch())
    worker.send(batch())
    worker.take_back()

    assert process.recalled == [3, 5]


async def test_death_while_batches_come_back(make: Any, stage: Any, owner: Owner) -> None:
    """Each is lost once; what the old machine says about them later changes nothing."""
    stage.away = 0.001
    worker = make()
    process = await stage.enter()
    process.load()
    sent = [batch(), batch()]
    for each in sent:
        worker.send(each)
    worker.take_back()
    process.begun = 1
    process.exit("was killed by SIGKILL")
    successor = await stage.enter(2)
    successor.load()
    fresh = [batch(), batch()]
    for each in fresh:
        worker.send(each)
    process.say(Recalled(1, 2))

    assert owner.lost == [(sent[0], sent[1:], owner.lost[0][2])]
    assert (owner.returned, list(worker.in_flight)) == ([], fresh)
    worker.take_back()
    assert successor.recalled == [4]


async def test_the_distance_is_measured_anew_with_each_answer(make: Any, stage: Any) -> None:
    """What its machine last measured counts."""
    stage.away = 0.001
    worker = make()
    process = await stage.enter()
    process.load()
    assert worker.round_trip == 0.001
    process.move(0.003)
    worker.send(batch())
    process.answer()

    assert worker.round_trip == 0.003


async def test_response_timeout(make: Any, stage: Any, owner: Owner) -> None:
    """Past the response timeout the clients hear first, then the process is killed and
    replaced without a pause.
    """
    worker = make(response=0.02)
    process = await stage.enter()
    process.load()
    running, waiting = batch(), batch()
    worker.send(running)
    worker.send(waiting)
    await stage.enter(2)
    lost, unbegun, error = owner.lost[0]

    assert (lost, unbegun) == (running, [waiting])
    assert isinstance(error, ResponseTimeout)
    assert process.killed
    assert stage.sleeps == []
    assert "response_timeout=0.02" in worker.failure


async def test_late_answer(make: Any, stage: Any, owner: Owner) -> None:
    """An answer to a batch that was given up goes nowhere."""
    worker = make(response=0.02)
    process = await stage.enter()
    process.load()
    worker.send(batch())
    await stage.enter(2)
    process.answer()

    assert owner.answered == []


async def test_silence(make: Any, stage: Any) -> None:
    """An idle process is asked for signs of life; one that gives none is replaced."""
    make(silence=0.03)
    process = await stage.enter()
    process.load()
    await stage.enter(2)

    assert process.killed
    assert any(isinstance(message, Ping) for message, _ in process.received)


async def test_signs_of_life(make: Any, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers is left alone, however long; one that has stopped to answer is not."""
    worker = make(silence=30.0)
    process = await stage.enter()
    process.load()
    loop = asyncio.get_running_loop()
    now = loop.time()
    clock = SimpleNamespace(time=lambda: now, call_later=loop.call_later, create_task=loop.create_task)
    monkeypatch.setattr(worker, "_loop", clock)
    for _ in range(10):
        now += 10.0
        worker._watch()
        process.say(Pong())
    assert not process.killed

    now += 30.0
    worker._watch()
    assert process.killed


async def test_stop_lets_batches_finish(make: Any, stage: Any, owner: Owner) -> None:
    """A worker that is stopped finishes what it has and takes nothing more."""
    worker = make()
    process = await stage.enter()
    process.load()
    running = batch()
    worker.send(running)
    stopping = asyncio.create_task(worker.stop(5))
    await stage.enter()
    assert worker.state is WorkerState.UNLOADING
    assert not worker.has_room
    process.answer()
    await stopping

    assert owner.answered == [running]
    assert not process.killed
    assert len(stage.processes) == 1


async def test_stop_that_takes_too_long(make: Any, stage: Any, owner: Owner) -> None:
    """A process that does not leave within the grace is killed, and its batch lost."""
    worker = make()
    process = await stage.enter()
    process.load()
    running = batch()
    worker.send(running)
    await worker.stop(0.01)

    assert process.killed
    assert owner.lost[0][0] is running
    assert any(isinstance(message, Stop) for message, _ in process.received)


async def test_the_gpu_is_the_one_that_the_model_uses(make: Any, stage: Any, spec: WorkerSpec) -> None:
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


async def test_stop_before_it_loaded(make: Any, stage: Any) -> None:
    """Who waits for a worker that is stopped while loading is told."""
    worker = make()
    await worker.stop(0.01)

    with pytest.raises(StartFailed, match="stopped before it had loaded"):
        await worker.first_load


async def test_stop_while_loading_waits_for_nothing(make: Any, stage: Any) -> None:
    """A load in progress does not hold up who stops the worker, however long the grace."""
    worker = make()
    process = await stage.enter()
    process.send = lambda message, bodies=(): None  # it reads nothing while it loads
    await asyncio.wait_for(worker.stop(60.0), 2.0)

    assert process.killed


@pytest.fixture
def held_up(stage: Any, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Processes say that they have loaded before their start ends, which waits for this event."""
    proceed = asyncio.Event()

    async def launch(*arguments: Any) -> Any:
        process = await stage.launch(*arguments)
        await proceed.wait()
        process.load(splits=True)
        return process

    monkeypatch.setattr(worker_module, "launch", launch)
    return proceed


async def test_a_process_that_has_loaded_before_its_start_ends(
    make: Any, stage: Any, owner: Owner, held_up: asyncio.Event
) -> None:
    """What it said is not lost, and not said to the owner twice."""
    worker = make()
    held_up.set()
    process = await stage.enter()
    worker.send(batch())
    process.answer()

    assert worker.first_load.done()
    assert (worker.idle, worker.splits, owner.ready, len(owner.answered)) == (True, True, 1, 1)


async def test_a_start_that_ends_after_the_stop_leaves_nothing_to_do(
    make: Any, stage: Any, owner: Owner, held_up: asyncio.Event
) -> None:
    """The process is killed, even if it had loaded, and the event loop rests."""
    worker = make()
    await until(lambda: stage.processes)
    stopping = asyncio.create_task(worker.stop())
    await stage.settle()
    held_up.set()
    await stopping
    began = time.process_time()
    await asyncio.sleep(0.2)

    assert time.process_time() - began < 0.1
    assert stage.processes[0].killed
    assert (worker.state, worker.process, owner.ready) == (WorkerState.UNLOADING, None, 0)


async def test_no_retry_where_none_is_wanted(make: Any, stage: Any) -> None:
    """``maxRetryTimeoutInSec: 0`` means that the first failure is the last."""
    worker = make(max_retry=0.0)
    (await stage.enter()).fail_to_load("no memory today")
    await stage.settle()

    assert worker.state is WorkerState.FAILED
    assert stage.sleeps == []


async def test_answer_to_another_batch(make: Any, stage: Any, owner: Owner) -> None:
    """A process that answers what it was not asked is replaced; nobody gets that answer."""
    worker = make()
    process = await stage.enter()
    process.load()
    running = batch()
    worker.send(running)
    process.say(Result(running.sequence + 7, [Answer(0)], 0.01))
    await stage.settle()

    assert process.killed
    assert owner.answered == []
    assert owner.lost[0][0] is running
    assert "unexpected answer" in worker.failure


async def test_killed_worker_takes_nothing(make: Any, stage: Any) -> None:
    """From the moment it is killed a worker is no longer offered batches."""
    worker = make()
    (await stage.enter()).load()
    assert worker.idle
    worker.kill("for the test")

    assert not worker.idle
    assert not worker.has_room


async def test_reserve_follows_the_cost(make: Any, stage: Any) -> None:
    """Quick handlers hold several batches in reserve, and lose that with the first slow one."""
    worker = make()
    process = await stage.enter()
    process.load()
    assert worker.capacity == 2
    for _ in range(100):
        worker.send(batch())
        process.answer(seconds=0.00001)
    assert worker.capacity == MAX_IN_FLIGHT

    worker.send(batch())
    process.answer(seconds=0.1)
    assert worker.capacity == 2


def test_backoff() -> None:
    """The pauses are Fibonacci's numbers, at most a minute."""
    assert list(itertools.islice(backoff(), 12)) == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 60, 60]


def test_quote() -> None:
    """A report ends with the last output, or says that there was none."""
    assert quote("a\nb") == " Its last output was:\na\nb"
    assert quote(" \n") == " It printed nothing."


async def test_loading_takes_turns(stage: Any, spec: WorkerSpec, times: WorkerTimes, owner: Owner) -> None:
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


# Answers in parts


def part(sequence: int, text: bytes) -> tuple[Parts, list[bytes]]:
    return Parts(sequence, [0], [Answer(len(text))]), [text]


async def test_parts(make: Any, stage: Any, owner: Owner) -> None:
    """Parts are handed on with their batch; those of a batch that is not there are dropped."""
    worker = make()
    process = await stage.enter()
    process.load()
    running = batch()
    worker.send(running)
    process.say(*part(0, b"one"))
    process.say(*part(5, b"late"))
    process.say(*part(0, b"two"))
    process.answer(b"end")

    assert owner.streamed == [(running, b"one"), (running, b"two")]
    assert owner.answered == [running]


async def test_each_part_winds_the_clock(make: Any, stage: Any, owner: Owner) -> None:
    """The response timeout is the time from part to part (reference 6.6)."""
    worker = make(response=0.2)
    process = await stage.enter()
    process.load()
    worker.send(batch())
    for _ in range(6):
        await asyncio.sleep(0.05)
        process.say(*part(0, b"x"))
    assert owner.lost == []
    await stage.enter(2)

    assert isinstance(owner.lost[0][2], ResponseTimeout)


async def test_clients_that_leave(make: Any, stage: Any) -> None:
    """The process is told which rows nobody waits for, in each batch that it has of the request."""
    worker = make()
    process = await stage.enter()
    process.load()
    both = Request("id", [Row("id", 1)] * 3, [b"x"] * 3, 0.0)
    other = Request("id", [Row("id", 1)], [b"x"], 0.0)
    worker.send(Batch([Parcel(other, 0, 1), Parcel(both, 0, 1)], 2, "size"))
    worker.send(Batch([Parcel(both, 1, 2)], 2, "size"))
    worker.cancel(both)
    worker.cancel(Request("id", [], [], 0.0))

    told = [message for message, _ in process.received if isinstance(message, Cancelled)]
    assert told == [Cancelled(0, [1]), Cancelled(1, [0, 1])]


# Many batches at a time


@pytest.fixture
async def concurrent(stage: Any, spec: WorkerSpec, times: WorkerTimes, owner: Owner) -> Any:
    """Makes loaded workers that run three batches at a time."""
    made: list[Worker] = []

    async def worker(**changed: float) -> Any:
        made.append(Worker(9000, "W-9000-m", replace(spec, concurrency=3), replace(times, **changed), owner))
        (await stage.enter()).load()
        return made[-1]

    yield worker
    for each in made:
        await each.stop(0.01)


async def test_answers_in_any_order(concurrent: Any, stage: Any, owner: Owner) -> None:
    """A worker that runs batches side by side has room for so many, whatever they cost, in any order."""
    worker = await concurrent()
    batches = [batch() for _ in range(3)]
    for each in batches:
        assert worker.has_room
        worker.send(each)
    assert not worker.has_room
    process = stage.processes[0]
    for sequence in (2, 0):
        process.say(Result(sequence, [Answer(1)], 10.0), [b"x"])
    process.say(Result(2, [Answer(1)], 10.0), [b"x"])
    process.say(Result(1, [Answer(1)], 10.0), [b"x"])

    assert owner.answered == [batches[2], batches[0], batches[1]]
    assert (worker.capacity, process.killed) == (3, False)


async def test_one_overdue_batch(concurrent: Any, stage: Any, owner: Owner) -> None:
    """Of several that run side by side only the late one is given up, as long as the process is heard."""
    worker = await concurrent(response=0.06)
    process = stage.processes[0]
    late, lively = batch(), batch()
    worker.send(late)
    worker.send(lively)
    for _ in range(200):
        process.say(*part(1, b"x"))
        if owner.lost:
            break
        await asyncio.sleep(0.005)

    (lost, unbegun, error) = owner.lost[0]
    assert (lost, unbegun, list(worker.in_flight)) == (late, [], [lively])
    assert isinstance(error, ResponseTimeout)
    assert Cancelled(0, [0]) in [message for message, _ in process.received]
    assert Ping() in [message for message, _ in process.received]
    process.say(Result(0, [Answer(1)], 1.0), [b"x"])
    assert owner.answered == []
    assert not process.killed


async def test_a_process_that_says_nothing(concurrent: Any, stage: Any, owner: Owner) -> None:
    """It is killed, and all that it ran is lost: nothing of it is tried again."""
    worker = await concurrent(response=0.03)
    batches = [batch(), batch()]
    for each in batches:
        worker.send(each)
    await stage.enter(2)

    assert [(lost, unbegun) for lost, unbegun, _ in owner.lost[:2]] == [(each, []) for each in batches]
    assert stage.processes[0].killed


async def test_death_with_many_batches(concurrent: Any, stage: Any, owner: Owner) -> None:
    """All of them were begun."""
    worker = await concurrent()
    batches = [batch(), batch(), batch()]
    for each in batches:
        worker.send(each)
    stage.processes[0].exit()
    await stage.enter(2)

    assert [(lost, unbegun) for lost, unbegun, _ in owner.lost[:3]] == [(each, []) for each in batches]


async def test_a_gpu_that_breaks_with_many_batches(concurrent: Any, stage: Any, owner: Owner) -> None:
    """Those that are not answered any more get the reason in general; operators, all of it."""
    worker = await concurrent()
    worker.send(batch())
    process = stage.processes[0]
    process.say(Broken("AcceleratorError: CUDA error"))
    process.exit()
    await stage.enter(2)
    error = owner.lost[0][2]

    assert isinstance(error, WorkerDied)
    assert (error.status, error.message, error.cause) == (500, GPU_BROKEN, "AcceleratorError: CUDA error")


async def test_a_worker_without_a_machine_is_not_given_up(
    spec: WorkerSpec, times: WorkerTimes, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long there is none; requests do not wait for it meanwhile."""

    async def nowhere(*_: Any) -> Any:
        raise OSError("no machine was found")

    monkeypatch.setattr(worker_module, "backoff", lambda: itertools.repeat(0.0))
    worker = Worker(9000, "W-9000-m", replace(spec, launcher=nowhere), replace(times, max_retry=0.05), owner)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:  # noqa: ASYNC110 - nothing tells of what does not happen
        await asyncio.sleep(0.01)

    assert worker.load_failures > 3
    assert (worker.state, worker.may_serve) == (WorkerState.LOADING, False)
    assert worker.failure == "The worker process could not be started: no machine was found"
    await worker.stop(0.01)
