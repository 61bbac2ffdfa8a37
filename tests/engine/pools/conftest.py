"""Workers whose processes are played by the test."""

import asyncio
import json
from dataclasses import replace

import psutil
import pytest
from tests.engine.pools import pools
from tests.simulated_time import Clock
from tests.waiting import until

from modelserver.engine.pools import ranks as ranks_module
from modelserver.engine.pools import worker as worker_module
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.process import WorkerProcess, launch
from modelserver.engine.pools.spec import Node, Receiver, WorkerSpec, WorkerTimes
from modelserver.engine.wire.messages import Answer, Load, Loaded, LoadFailed, Predict, Result, Row, Stop


class PlayedProcess:
    """Stands in for a worker process: keeps what it is sent and says what the test makes it say."""

    def __init__(self, pid, on_message, on_lost):
        self.pid = pid
        self.received = []
        self.killed = False
        self.batches_started = None
        self.node = None
        self.round_trip = 0.0
        # The sequences of batches that it should give back, on another machine.
        self.recalled = []
        self.output = ""
        self._on_message = on_message
        self._on_lost = on_lost
        self._end = asyncio.get_running_loop().create_future()

    # -- what a worker sees of it

    def send(self, message, bodies=()):
        self.received.append((message, list(bodies)))
        if isinstance(message, Stop) and not self.batches:
            self.exit("exited with status 0")

    def kill(self):
        self.killed = True
        self.exit("was killed by SIGKILL")

    async def wait(self):
        return await asyncio.shield(self._end)

    def last_output(self, lines=20):
        return self.output

    @property
    def pids(self):
        return [self.pid]

    recalls = True
    for_memory: bool | None = False

    def allow(self, limit):
        """Does nothing, as no frames arrive from it."""

    def recall(self, sequence):
        """Gives up all batches but the oldest, which it has begun; from elsewhere, the test does that."""
        if self.node is not None:
            self.recalled.append(sequence)
            return None
        if not self.batches:
            return sequence
        started = self.batches[0].sequence + 1
        self.received = [
            item for item in self.received if not isinstance(item[0], Predict) or item[0].sequence < started
        ]
        return started

    # -- what a test makes it do

    def move(self, seconds):
        """Runs on another machine, so many seconds away and back."""
        self.node, self.round_trip = Node("elsewhere"), seconds

    @property
    def batches(self):
        """The batches it got and has not answered."""
        return [message for message, _ in self.received if isinstance(message, Predict)]

    def say(self, message, bodies=()):
        self._on_message(message, memoryview(b"".join(bodies)))

    def load(self, **fields):
        self.say(Loaded(**fields))

    def fail_to_load(self, message, **fields):
        """Says that its model cannot be loaded, and leaves."""
        self.say(LoadFailed(message, **fields))
        self.exit("exited with status 1")

    def answer(self, *contents, seconds=0.01, status=200, **fields):
        """Answers its oldest batch: with these, or with the rows' own bytes; from 400 on with failures."""
        oldest = next(item for item in self.received if isinstance(item[0], Predict))
        self.received.remove(oldest)
        batch, bodies = oldest
        sent = list(contents) or bodies
        answers = [Answer(len(body), status, failed=status >= 400) for body in sent]
        self.say(Result(batch.sequence, answers, seconds, **fields), sent)
        if any(isinstance(message, Stop) for message, _ in self.received) and not self.batches:
            self.exit("exited with status 0")

    def exit(self, how="exited with status 1"):
        if not self._end.done():
            self._end.set_result(how)
            asyncio.get_running_loop().call_soon(self._on_lost, None)


class Stage:
    """All processes that were started, in order."""

    def __init__(self):
        self.processes = []
        self.error = None
        self.sleeps = []
        self.away = 0.0
        self.specs = []

    async def launch_elsewhere(self, spec, label, receivers):
        return [await self.launch(spec, label, *receivers)]

    async def launch(self, spec, label, receiver):
        if self.error is not None:
            raise self.error
        process = PlayedProcess(1000 + len(self.processes), receiver.on_message, receiver.on_lost)
        if self.away:
            process.move(self.away)
        process.send(spec.load)
        self.specs.append(spec)
        self.processes.append(process)
        return process

    async def settle(self):
        await settle()

    async def enter(self, count=1):
        """The process that is started as number ``count``."""
        await until(lambda: len(self.processes) >= count)
        await settle()
        return self.processes[count - 1]


class Counts:
    """Counts what a pool counts: name to the arguments of each call."""

    requests = batches = workers = property(lambda self: self)

    def __init__(self):
        self.calls = {}

    def __getattr__(self, name):
        return lambda *arguments: self.calls.setdefault(name, []).append(arguments)

    def __call__(self, name):
        return self.calls.get(name, [])


class Conversation:
    """A real worker process and what it says."""

    def __init__(self, spawner=None):
        self.spawner = spawner
        self.messages = asyncio.Queue()
        self.lost = asyncio.get_running_loop().create_future()
        self.process: WorkerProcess

    async def start(self, model_dir, handler="h.py", **fields):
        load = Load("m", "1.0", str(model_dir), handler, 2)
        options = {"threads": 1, "frame_limit": 1 << 20, "spawner": self.spawner, **fields}
        self.process = await launch(
            WorkerSpec(load=load, **options),
            "W-1-m",
            Receiver(lambda m, tail: self.messages.put_nowait((m, bytes(tail))), self.lost.set_result),
        )
        return self

    async def next(self):
        return await asyncio.wait_for(self.messages.get(), 20)

    async def described(self):
        """What a handler answers that describes its process in JSON."""
        self.process.send(Predict(0, [Row("a", 1)]), [b"x"])
        _, tail = await self.next()
        return json.loads(tail)

    def parent(self):
        return psutil.Process(self.process.pid).ppid()


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def simulated_time(monkeypatch):
    """The clock of the test's event loop, on which time passes only as timers ask for it."""
    loop = asyncio.get_running_loop()
    clock = Clock()
    clock.now = loop.time()
    monkeypatch.setattr(loop, "_selector", clock)
    monkeypatch.setattr(loop, "time", lambda: clock.now)
    return clock


@pytest.fixture
def stage(monkeypatch):
    """The place where processes are started; pauses between tries pass at once and are recorded."""
    made = Stage()
    monkeypatch.setattr(ranks_module, "launch", made.launch)

    def backoff():
        for pause in (1.0, 1.0, 2.0, 3.0):
            made.sleeps.append(pause)
            yield 0.0
        while True:
            yield 60.0

    monkeypatch.setattr(worker_module, "backoff", backoff)
    return made


@pytest.fixture
def counts():
    return Counts()


@pytest.fixture
async def begin(stage):
    """Scales a pool to so many workers, which load; it is closed after the test."""
    started = []

    async def begin(pool, workers):
        started.append(pool)
        pool.scale(workers, workers)
        for number in range(workers):
            (await stage.enter(number + 1)).load()

    yield begin
    for pool in started:
        await pool.close(0.01)


@pytest.fixture
def spec():
    return WorkerSpec(load=Load("m", "1.0", "/nowhere", "handler.py", 4), threads=1, frame_limit=1 << 20)


@pytest.fixture
def times():
    """Clocks that do not run out during a test."""
    return WorkerTimes(startup=60.0, response=60.0, silence=60.0, max_retry=300.0)


@pytest.fixture
async def make(stage, spec, times, counts):
    """Makes pools that are closed after the test; their workers still have to load."""
    made = []

    def pool(workers=1, **limits):
        bounds = replace(pools.LIMITS, **limits)
        parts = {"next_id": iter(range(9000, 9100)).__next__, "devices": DeviceRing(0), "metrics": counts}
        made.append(Pool("m", "m_1.0", spec, times, bounds, **parts, clock=pools.now))
        made[-1].scale(workers, workers)
        return made[-1]

    pool.made = made
    yield pool
    for each in made:
        await each.close(0.01)


@pytest.fixture
async def pool(make, stage):
    made = make()
    (await stage.enter()).load()
    return made
