"""What waits at busy workers, on a clock of the test: seconds pass as soon as nobody has anything to do."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.pools.conftest import Counts
from tests.simulated_time import run

from modelserver.engine.batching.request import Request
from modelserver.engine.pools import ranks as ranks_module
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.flights import MAX_IN_FLIGHT, REST
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import Node, PoolLimits, WorkerSpec, WorkerState, WorkerTimes
from modelserver.engine.pools.worker import MANY_LOAD_FAILURES
from modelserver.engine.wire import messages as wire
from modelserver.errors import ServiceUnavailable

LIMITS = PoolLimits(batch_size=1, policy="greedy", max_delay=0.0, max_requests=10_000, max_bytes=1 << 20)
SPEC = WorkerSpec(load=wire.Load("m", "1.0", "/nowhere", "handler.py", 1), threads=1, frame_limit=1 << 20)
TIMES = WorkerTimes(startup=60.0, response=3600.0, silence=3600.0, max_retry=3600.0)


class Process:
    """A worker process: takes the batches one after the other, each for as long as its body says."""

    recalls = True
    for_memory = False
    pid = 1
    pids = (1,)

    def __init__(self, world, on_message, on_lost):
        self.batches_started = None
        self.round_trip = world.round_trips.pop(0) if world.round_trips else 0.0
        self.node = Node("elsewhere") if self.round_trip else None
        self._way = self.round_trip / 2
        self._arrives = 0.0
        self._world = world
        self._say, self._on_lost = on_message, on_lost
        self._loop = asyncio.get_running_loop()
        self._waiting = []
        self._running = None
        self._next = self._recalled = 0
        self._end = self._loop.create_future()

    def send(self, message, bodies=()):
        if isinstance(message, wire.Load):
            self._later(0.0, self._say, wire.Loaded(pipelined=self._world.pipelined), memoryview(b""))
        elif isinstance(message, wire.Predict):
            seconds = max(float(body) for body in bodies)
            if self._way:
                self._far(self._receive, message, seconds)
            else:
                self._receive(message, seconds)
        elif isinstance(message, wire.Stop):
            self._far(self._leave)

    def _receive(self, message, seconds):
        if message.sequence >= self._recalled:
            self._waiting.append((message, seconds))
            self._later(0.0001, self._begin)

    def allow(self, limit):
        """Does nothing, as no frames arrive from it."""

    def _later(self, seconds, call, *arguments):
        self._loop.call_later(seconds, lambda: None if self._end.done() else call(*arguments))

    def _far(self, call, *arguments):
        """What is sent arrives in order."""
        self._arrives = max(self._arrives + 1e-9, self._loop.time() + self._way)
        self._later(self._arrives - self._loop.time(), call, *arguments)

    def _begin(self):
        if self._running is None and self._waiting:
            self._running, seconds = self._waiting.pop(0)
            self._next = self._running.sequence + 1
            self._world.began += [row.request_id for row in self._running.rows]
            self._later(seconds, self._answer, seconds)

    def _answer(self, seconds):
        assert self._running is not None
        batch, self._running = self._running, None
        result = wire.Result(batch.sequence, [wire.Answer(1) for _ in batch.rows], seconds)
        tail = memoryview(b"x" * len(batch.rows))
        if self._way:
            self._far(self._say, result, tail)
        else:
            self._say(result, tail)
        self._begin()

    def recall(self, sequence):
        self._world.recalls += 1
        if self._way:
            self._far(self._give_back, sequence)
            return None
        taken, self._waiting = self._waiting, []
        if taken and self._running is None and self._world.random.random() < 0.5:
            # It wanted to begin this one at the same moment.
            first = taken[0][0].sequence
            self._later(0.0001, self._say, wire.Returned(first), memoryview(b""))
            return first + 1
        return self._next

    def _give_back(self, below):
        self._recalled = below
        self._waiting = [item for item in self._waiting if item[0].sequence >= below]
        self._far(self._say, wire.Recalled(self._next, below), memoryview(b""))

    def _leave(self):
        if self._running is None and not self._waiting:
            self._far(self._exit, "exited with status 0")
        else:
            self._later(0.001, self._leave)

    def kill(self):
        self._exit("was killed by SIGKILL")

    def _exit(self, how):
        if not self._end.done():
            self.batches_started = self._next
            self._end.set_result(how)
            self._loop.call_soon(self._on_lost, None)

    async def wait(self):
        return await asyncio.shield(self._end)

    def last_output(self, lines=20):
        return ""


class World:
    """A pool whose processes are played, and what became of its requests."""

    def __init__(self, seed=0, *, pipelined=False, round_trips=()):
        self.random = random.Random(seed)
        self.round_trips = list(round_trips)
        self.pipelined = pipelined
        self.processes = []
        self.began = []
        self.recalls = 0
        self.ends = {}
        self.sent = []

    async def pool(self, workers, batch_size=1, **limits):
        bounds, clock = replace(LIMITS, batch_size=batch_size, **limits), asyncio.get_running_loop().time
        parts = {"next_id": iter(range(1000)).__next__, "devices": DeviceRing(0), "metrics": Counts()}
        pool = Pool("m", "m_1.0", SPEC, TIMES, bounds, **parts, clock=clock)
        pool.scale(workers, workers)
        while not all(worker.state is WorkerState.READY for worker in pool.workers):  # noqa: ASYNC110 - no time passes
            await asyncio.sleep(0.01)
        return pool

    async def launch(self, spec, label, receiver):
        process = Process(self, receiver.on_message, receiver.on_lost)
        process.send(spec.load)
        self.processes.append(process)
        return process

    def ask(self, pool, seconds):
        name, body = str(len(self.sent)), b"%.6f" % seconds
        request = Request(
            name, [wire.Row(name, len(body))], [body], pool.dispatch.clock(), on_done=self._ended
        )
        self.sent.append(request)
        pool.submit(request)
        return request

    def _ended(self, request):
        assert request.id not in self.ends
        self.ends[request.id] = request


def play(main, world):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "launch", world.launch)
        run(main(world))


def played(workers, batch_size=1, **options):
    """Runs a test with a pool of so many workers on a clock of its own."""

    def decorate(test):
        async def main(world):
            pool = await world.pool(workers, batch_size)
            await test(world, pool)
            await pool.close(10.0)

        def run_test():
            play(main, World(**options))

        run_test.__name__ = test.__name__
        return run_test

    return decorate


async def answered(requests, step=0.0005):
    while not all(request.done for request in requests):  # noqa: ASYNC110 - no time passes
        await asyncio.sleep(step)


@played(2)
async def test_quick_handlers_get_several_batches_at_once(world, pool):
    for _ in range(5):
        await answered([world.ask(pool, 0.00001) for _ in range(200)])

    assert [worker.flights.shared_capacity for worker in pool.workers] == [MAX_IN_FLIGHT] * 2
    requests = [world.ask(pool, 0.00001) for _ in range(40)]
    assert [len(worker.flights.in_flight) for worker in pool.workers] == [MAX_IN_FLIGHT] * 2
    await answered(requests)


@played(2)
async def test_one_that_takes_longer_than_expected_gives_back_what_waits_behind_it(world, pool):
    for _ in range(5):
        await answered([world.ask(pool, 0.00001) for _ in range(200)])
    began = pool.dispatch.clock()
    slow = world.ask(pool, 5.0)
    requests = [world.ask(pool, 0.00001) for _ in range(30)]
    assert len(pool.workers[0].flights.in_flight) > 8
    await answered(requests)

    assert pool.dispatch.clock() - began < 5 * REST
    assert not slow.done
    assert world.began.count("1001") == 1


@played(2, pipelined=True)
async def test_a_pipelined_worker_prepares_one_batch_ahead_until_another_worker_is_idle(world, pool):
    await answered([world.ask(pool, 0.05) for _ in range(2)])
    slow, quick = world.ask(pool, 2.0), world.ask(pool, 0.1)
    reserve = [world.ask(pool, 0.05) for _ in range(2)]
    assert [len(worker.flights.in_flight) for worker in pool.workers] == [2, 2]
    await answered([quick, *reserve])

    assert not slow.done
    assert sum(request.queued for request in reserve) == pytest.approx(0.25, abs=0.01)


@played(1)
async def test_a_worker_that_was_alone_gives_its_reserve_to_the_next_one(world, pool):
    slow, waits = world.ask(pool, 3.0), world.ask(pool, 0.1)
    assert len(pool.workers[0].flights.in_flight) == 2
    pool.scale(2, 2)
    await answered([waits])

    assert not slow.done


@played(2, pipelined=True)
async def test_a_worker_that_is_to_end_keeps_what_it_has_started(world, pool):
    await answered([world.ask(pool, 0.05) for _ in range(2)])
    requests = [world.ask(pool, 1.0) for _ in range(4)]
    assert [len(worker.flights.in_flight) for worker in pool.workers] == [2, 2]
    await asyncio.sleep(0.5)
    pool.scale(1, 1)
    await answered(requests)

    assert all(request.error is None for request in requests)
    assert [request.queued for request in requests] == pytest.approx([0.0, 0.0, 1.0, 2.0], abs=0.02)


@pytest.mark.parametrize("failures", [MANY_LOAD_FAILURES, 1])
def test_the_only_worker_that_serves_holds_a_reserve(failures):
    """Unlike for one that is retried, nobody waits for one that keeps failing. What is held stays held."""

    async def main(world):
        pool = await world.pool(2)
        pool.workers[1].state = WorkerState.LOADING
        pool.workers[1].failures.loads = failures
        requests = [world.ask(pool, 0.5) for _ in range(2)]
        await asyncio.sleep(0.1)

        held = 2 if failures == MANY_LOAD_FAILURES else 1
        assert [len(worker.flights.in_flight) for worker in pool.workers] == [held, 0]
        assert world.recalls == 0
        await answered(requests)
        await pool.close(1.0)

    play(main, World())


def test_several_workers_each_run_as_many_at_once_as_they_may(monkeypatch):
    monkeypatch.setitem(globals(), "SPEC", replace(SPEC, concurrency=2 * MAX_IN_FLIGHT))

    async def main(world):
        pool = await world.pool(2)
        for _ in range(4 * MAX_IN_FLIGHT):
            world.ask(pool, 0.001)

        assert [len(worker.flights.in_flight) for worker in pool.workers] == [2 * MAX_IN_FLIGHT] * 2
        await answered(world.sent)
        await pool.close(1.0)

    play(main, World())


@played(2, round_trips=[0.01, 0.01])
async def test_workers_elsewhere_stay_busy(world, pool):
    await answered([world.ask(pool, 0.05) for _ in range(2)])
    began = pool.dispatch.clock()
    await answered([world.ask(pool, 0.05) for _ in range(40)])

    # 20 batches each, and the way once.
    assert pool.dispatch.clock() - began == pytest.approx(20 * 0.05 + 0.01, abs=0.006)
    assert world.recalls == 0


@played(1, 4, round_trips=[0.01])
async def test_batches_that_are_not_full_leave_early_too(world, pool):
    await answered([world.ask(pool, 0.05)])
    world.ask(pool, 0.05)
    await asyncio.sleep(0.02)
    request = world.ask(pool, 0.05)
    await asyncio.sleep(0.02)
    assert len(pool.workers[0].flights.in_flight) == 1
    began = pool.dispatch.clock() - 0.04
    await answered([request])

    assert pool.dispatch.clock() - began == pytest.approx(0.01 + 0.1, abs=0.001)


@played(2, round_trips=[0.01, 0.01])
async def test_short_batches_do_not_wait_for_the_way(world, pool):
    """Where the way is longer than a batch, as many are on it as keep the worker busy."""
    for _ in range(60):
        await answered([world.ask(pool, 0.002)])
    began = pool.dispatch.clock()
    await answered([world.ask(pool, 0.002) for _ in range(200)])

    assert pool.dispatch.clock() - began < 1.25 * (100 * 0.0021 + 0.01)


@played(2, round_trips=[0.01, 0.01])
async def test_full_batches_leave_in_time_for_a_worker_that_is_early(world, pool):
    """Where batches end a little sooner or later than expected, the next full one is there before."""
    for _ in range(20):
        await answered([world.ask(pool, 0.05) for _ in range(2)])
    began = pool.dispatch.clock()
    # Two workers, each in turn early and late.
    seconds = [0.046, 0.046, 0.054, 0.054] * 10
    await answered([world.ask(pool, each) for each in seconds])

    assert pool.dispatch.clock() - began == pytest.approx(20 * 0.05 + 0.01, abs=0.006)


@played(3, round_trips=[0.02, 0.004, 0.0])
async def test_the_nearest_idle_worker_is_first(world, pool):
    await answered([world.ask(pool, 0.05) for _ in range(3)])
    for _ in range(3):
        requests = [world.ask(pool, 0.05) for _ in range(2)]
        await asyncio.sleep(0.001)
        assert [len(worker.flights.in_flight) for worker in pool.workers] == [0, 1, 1]
        await answered(requests)


@played(2, round_trips=[0.1, 0.0])
async def test_nothing_leaves_for_far_away_that_one_here_begins_sooner(world, pool):
    """One 100 ms away and one here that is done in 20 ms: a batch in between waits for the one here."""
    await answered([world.ask(pool, 0.05) for _ in range(2)])
    first = [world.ask(pool, 0.05) for _ in range(2)]
    await asyncio.sleep(0.03)
    last = world.ask(pool, 0.05)
    await answered([*first, last])

    assert last.queued == pytest.approx(0.02, abs=0.002)


@played(2, round_trips=[0.01, 0.01])
async def test_what_follows_a_batch_that_outlives_its_expectation_comes_back_once(world, pool):
    await answered([world.ask(pool, 0.05) for _ in range(6)])
    slow = world.ask(pool, 5.0)
    quick = world.ask(pool, 0.05)
    await asyncio.sleep(0.053)
    follower = world.ask(pool, 0.05)
    other = world.ask(pool, 0.05)
    assert [len(worker.flights.in_flight) for worker in pool.workers] == [2, 2]
    began = pool.dispatch.clock()
    await answered([quick, follower, other])

    assert not slow.done
    # The other's turn, finding out, and the way back.
    assert pool.dispatch.clock() - began < 0.05 + 0.05 + 4 * 0.01
    assert world.recalls == 1
    assert len(world.began) == len(set(world.began))
    await answered([slow])


@played(2, round_trips=[0.01, 0.01])
async def test_a_recall_in_vain_is_not_sent(world, pool):
    await answered([world.ask(pool, 0.05) for _ in range(2)])
    requests = [world.ask(pool, seconds) for seconds in (0.05, 0.046)]
    await asyncio.sleep(0.0515)
    requests.append(world.ask(pool, 0.05))
    await answered(requests)

    assert world.recalls == 0


@played(1, 4, round_trips=[0.01])
async def test_the_cost_of_a_batch_counts_the_way_that_its_worker_waited_for_it(world, pool):
    """Seconds of a batch for the policy: the handler's, and the round trip unless it had left in advance."""
    reports = []
    pool.queue.policy.finished = lambda count, seconds, now: reports.append(seconds)
    await answered([world.ask(pool, 0.05)])
    world.ask(pool, 0.05)
    await asyncio.sleep(0.02)
    await answered([world.ask(pool, 0.05)])

    assert reports == pytest.approx([0.06, 0.06, 0.05], abs=0.001)


@played(2, round_trips=[0.01, 0.01])
async def test_a_batch_that_comes_back_when_nobody_is_left_is_refused(world, pool):
    """A recall is answered while the pool is being closed: its request gets its 503, and nobody hangs."""
    await answered([world.ask(pool, 0.05) for _ in range(2)])
    slow = [world.ask(pool, 1.0) for _ in range(2)]
    await asyncio.sleep(0.052)
    request = world.ask(pool, 0.05)
    while not world.recalls:  # noqa: ASYNC110 - no time passes
        await asyncio.sleep(0.001)
    await pool.close(10.0)

    assert isinstance(request.error, ServiceUnavailable)
    assert [each.error for each in slow] == [None, None]


@settings(max_examples=20)
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from([0.001, 0.02, 0.02, 0.02, 0.3]), st.floats(0.0, 0.02)),
        min_size=10,
        max_size=40,
    ),
    round_trips=st.lists(st.sampled_from([0.0, 0.0005, 0.001, 0.01]), min_size=1, max_size=4),
    batch_size=st.sampled_from([1, 3]),
    pipelined=st.booleans(),
    deaths=st.sets(st.integers(0, 39), max_size=2),
    seed=st.integers(0, 1000),
)
def test_each_request_is_answered_once_at_any_distance(
    arrivals, round_trips, batch_size, pipelined, deaths, seed
):
    async def main(world):
        pool = await world.pool(len(round_trips), batch_size)
        for number, (seconds, pause) in enumerate(arrivals):
            world.ask(pool, seconds)
            if number in deaths:
                world.random.choice(world.processes).kill()
            await asyncio.sleep(pause)
        await answered(world.sent, 0.005)

        assert world.ends.keys() == {request.id for request in world.sent}
        assert len(world.began) == len(set(world.began))
        if not deaths:
            assert [request for request in world.sent if request.error is not None] == []
        await pool.close(10.0)

    play(main, World(seed, pipelined=pipelined, round_trips=round_trips))


durations = st.one_of(st.just(0.00005), st.just(0.0004), st.floats(0.001, 0.02), st.floats(0.05, 0.3))


@settings(max_examples=25)
@given(
    arrivals=st.lists(st.tuples(durations, st.floats(0.0, 0.003)), min_size=1, max_size=40),
    workers=st.integers(1, 4),
    batch_size=st.sampled_from([1, 3]),
    policy=st.sampled_from(["greedy", "window"]),
    pipelined=st.booleans(),
    deaths=st.lists(st.integers(0, 39), max_size=3),
    cancelled=st.sets(st.integers(0, 39), max_size=5),
    seed=st.integers(0, 1000),
)
def test_each_request_is_answered_once_and_none_waits_beside_an_idle_worker(
    arrivals, workers, batch_size, policy, pipelined, deaths, cancelled, seed
):
    async def main(world):
        pool = await world.pool(workers, batch_size, policy=policy, max_delay=0.02)
        # After these requests, the costs of the handler are known.
        await answered([world.ask(pool, 0.00001) for _ in range(300)])
        idle_beside = {}
        watching = asyncio.create_task(_watch(pool, idle_beside))
        for number, (seconds, pause) in enumerate(arrivals):
            request = world.ask(pool, seconds)
            if number in deaths:
                world.random.choice(world.processes).kill()
            if number in cancelled:
                pool.cancel(request)
                world.ends[request.id] = request
            await asyncio.sleep(pause)
        await answered(world.sent)
        watching.cancel()

        assert world.ends.keys() == {request.id for request in world.sent}
        assert len(world.began) == len(set(world.began))
        failed = [request for request in world.sent if request.error is not None]
        assert len(failed) <= len(cancelled) + len(deaths) * batch_size
        # A look of a timer of REST seconds, and the way to the worker.
        assert max(idle_beside.values(), default=0.0) <= 2 * REST + 0.001
        await pool.close(10.0)

    play(main, World(seed, pipelined=pipelined))


@settings(max_examples=25)
@given(
    arrivals=st.lists(
        st.tuples(st.floats(0.05, 0.5), st.sampled_from([0.0, 0.0, 0.2, 0.4])), min_size=20, max_size=25
    ),
    workers=st.integers(2, 3),
    seed=st.integers(0, 1000),
)
def test_slow_batches_do_not_wait_beside_an_idle_worker(arrivals, workers, seed):
    step = 0.005

    async def main(world):
        pool = await world.pool(workers)
        idle_beside = {}
        watching = asyncio.create_task(_watch(pool, idle_beside, step))
        for seconds, pause in arrivals:
            world.ask(pool, seconds)
            await asyncio.sleep(pause)
        await answered(world.sent, step)
        watching.cancel()

        assert max(idle_beside.values(), default=0.0) <= step
        await pool.close(10.0)

    play(main, World(seed, pipelined=True))


async def _watch(pool, longest, step=0.0005):
    """Measures for each batch that waits at a worker how long another worker was idle."""
    since = {}
    while True:
        waiting = [batch for worker in pool.workers for batch in list(worker.flights.in_flight)[1:]]
        idle = any(worker.idle for worker in pool.workers)
        since = {batch: since.get(batch, pool.dispatch.clock()) for batch in waiting} if idle else {}
        for batch, began in since.items():
            longest[batch] = max(longest.get(batch, 0.0), pool.dispatch.clock() - began)
        await asyncio.sleep(step)
