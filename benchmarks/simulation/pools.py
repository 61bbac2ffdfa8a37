"""Pools as they are in the server, on a clock that costs nothing, with simulated workers at any distance.

Nothing of the server's side is imitated: queue, policy, what is sent in advance and taken back are those of
:mod:`modelserver.engine.pools`. Simulated are time, the ways, what batches take, and the core that the server
has.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, cast

from modelserver.engine.batching.request import Request
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import Node, PoolLimits, WorkerSpec, WorkerState, WorkerTimes
from modelserver.engine.wire.messages import Answer, Load, Loaded, Predict, Recalled, Result, Row, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelserver.engine.simulation.costs import Cost
    from modelserver.engine.wire.messages import ToServer, ToWorker

_FOREVER = 1e9
_TIMES = WorkerTimes(startup=_FOREVER, response=_FOREVER, silence=_FOREVER, max_retry=_FOREVER)
_NOTHING = memoryview(b"")
# Messages at the same moment stay in order.
_APART = 1e-9
_ROWS = [Row("r", 1)]


class Route(Protocol):
    """Which server gets the next request: its number."""

    def __call__(self, replicas: Sequence[Replica], chance: Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A worker: ``slowness`` is its time for a batch relative to the others', ``round_trip`` in seconds."""

    slowness: float = 1.0
    round_trip: float = 0.0


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of the server's core for each request and each batch."""

    request: float = 0.0
    batch: float = 0.0


class Core:
    """One core: does one thing after another. ``busy`` are the seconds for which it worked."""

    def __init__(self) -> None:
        self.busy = 0.0
        self._free = 0.0
        self._loop = asyncio.get_running_loop()

    def do(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        """Calls it when the work before it and its own ``seconds`` are done."""
        self._free = max(self._free + _APART, self._loop.time()) + seconds
        self.busy += seconds
        self._loop.call_at(self._free, call, *arguments)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers of one model, and what it costs to run it.

    A batch takes ``cost`` times the place's slowness, give or take the share ``jitter`` of it, and
    ``long_for`` seconds more if one of its rows is long, as the share ``long`` of all are. ``overhead`` is
    that of the server, or of each server.
    """

    cost: Cost
    batch_size: int
    places: Sequence[Place]
    policy: str = "adaptive"
    max_delay: float = 0.1
    overhead: Overhead = Overhead()
    jitter: float = 0.1
    long: float = 0.0
    long_for: float = 0.0

    @property
    def capacity(self) -> float:
        """Requests per second in full batches."""
        some_long = 1 - (1 - self.long) ** self.batch_size
        full = self.cost.seconds(self.batch_size)
        return sum(self.batch_size / (p.slowness * full + some_long * self.long_for) for p in self.places)


@dataclass(slots=True)
class Outcome:
    """``answers``: the arrival of each request and its latency for its client, in seconds.

    ``core`` and ``worker`` are the shares of the time for which the core of the busiest server and the
    workers were busy, ``recalls`` how often batches were to be taken back.
    """

    answers: list[tuple[float, float]] = field(default_factory=list)
    batches: int = 0
    rows: int = 0
    worked: float = 0.0
    seconds: float = 0.0
    recalls: int = 0
    core: float = 0.0
    worker: float = 0.0


class _Process:
    """A worker's process: one batch after the other, each for what it costs."""

    pid = 1
    begun: int | None = None
    recalls = True

    def __init__(self, world: _World, place: Place, core: Core, on_message: Callable[..., None]) -> None:
        self.round_trip = place.round_trip
        self.node = Node("elsewhere") if place.round_trip else None
        self.pids = [] if place.round_trip else [1]
        self._world, self._place, self._core = world, place, core
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._arrival = 0.0
        self._waiting: list[tuple[Predict, float]] = []
        self._running = False
        self._next = 0
        self._end: asyncio.Future[str] = self._loop.create_future()

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        if isinstance(message, Load):
            self._later(self._say, Loaded(), _NOTHING)
        elif isinstance(message, Predict):
            longest = max(map(float, bodies))
            self._later(self._receive, message, longest)
        elif isinstance(message, Stop):
            self.kill()

    def _later(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._arrival = max(self._arrival + _APART, self._loop.time() + self.round_trip / 2)
        self._loop.call_at(self._arrival, call, *arguments)

    def _say(self, message: ToServer, tail: memoryview) -> None:
        work = self._world.fleet.overhead.batch if isinstance(message, Result) else 0.0
        self._core.do(work, self._on_message, message, tail)

    def _receive(self, message: Predict, longest: float) -> None:
        self._waiting.append((message, longest))
        if not self._running:
            self._begin()

    def _begin(self) -> None:
        message, longest = self._waiting.pop(0)
        size = len(message.rows)
        self._running, self._next = True, message.sequence + 1
        seconds = self._world.seconds(self._place, size) + longest
        self._loop.call_later(seconds, self._finish, message.sequence, size, seconds)

    def _finish(self, sequence: int, size: int, seconds: float) -> None:
        self._running = False
        self._world.count(size, seconds)
        self._later(self._say, Result(sequence, [Answer(0)] * size, seconds), _NOTHING)
        if self._waiting:
            self._begin()

    def recall(self, sequence: int) -> int | None:
        self._world.outcome.recalls += 1
        if self.round_trip:
            self._later(self._give_back, sequence)
            return None
        self._waiting.clear()
        return self._next

    def _give_back(self, below: int) -> None:
        self._waiting = [item for item in self._waiting if item[0].sequence >= below]
        self._later(self._say, Recalled(self._next, below), _NOTHING)

    def allow(self, limit: int) -> None:
        """Nothing is a frame."""

    def kill(self) -> None:
        if not self._end.done():
            self._end.set_result("exited with status 0")

    async def wait(self) -> str:
        return await asyncio.shield(self._end)

    def last_output(self, lines: int = 20) -> str:
        return ""


class _Nothing:
    """Metrics that nobody reads."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Replica:
    """A server with its queue, its workers and its core; ``in_hand`` counts requests, as a balancer does."""

    def __init__(self, world: _World, places: Sequence[Place]) -> None:
        self.core = Core()
        self.in_hand = 0
        self._world = world
        self._places = iter(places)
        fleet = world.fleet
        load = Load("m", "1.0", "/nowhere", "handler.py", fleet.batch_size)
        self.pool = Pool(
            *("m", "m_1.0", WorkerSpec(load, 1, 1 << 30, launcher=self._launch), _TIMES),
            PoolLimits(fleet.batch_size, fleet.policy, fleet.max_delay, 1 << 30, 1 << 50),
            next_id=itertools.count().__next__,
            devices=DeviceRing(0),
            metrics=cast("Any", _Nothing()),
        )
        self.pool.clock = asyncio.get_running_loop().time
        self.pool.scale(len(places), len(places))

    async def _launch(
        self, spec: WorkerSpec, label: str, on_message: Callable[..., None], on_lost: Callable[..., None]
    ) -> _Process:
        process = _Process(self._world, next(self._places), self.core, on_message)
        process.send(spec.load)
        return process

    async def load(self) -> None:
        """Waits until all workers have loaded."""
        await self.pool.wait_loaded(self.pool.workers)
        assert all(worker.state is WorkerState.READY for worker in self.pool.workers)

    def ask(self, body: bytes, on_done: Callable[[Request], None]) -> None:
        """A request has reached the server."""
        self.core.do(self._world.fleet.overhead.request, self._submit, body, on_done)

    def _submit(self, body: bytes, on_done: Callable[[Request], None]) -> None:
        arrived = self.pool.clock()
        self.pool.submit(Request("r", _ROWS, [body], arrived, on_done=on_done))


class _World:
    """Requests at random times, the servers that they go to, and what becomes of them."""

    def __init__(self, fleet: Fleet, route: Route | None, seed: int) -> None:
        self.fleet = fleet
        self.outcome = Outcome()
        self._route = route
        # What arrives is drawn apart from the rest, so that all routes get the same requests.
        self._arrivals, self._chance = Random(seed), Random(seed + 1)
        self._loop = asyncio.get_running_loop()
        self._replicas: list[Replica] = []
        self._left = 0
        self._answered: asyncio.Future[None] = self._loop.create_future()

    def seconds(self, place: Place, size: int) -> float:
        """What a batch takes."""
        jitter = self.fleet.jitter
        return place.slowness * self.fleet.cost.seconds(size) * self._chance.uniform(1 - jitter, 1 + jitter)

    def count(self, size: int, seconds: float) -> None:
        """A batch is done."""
        self.outcome.batches += 1
        self.outcome.rows += size
        self.outcome.worked += seconds

    async def run(self, rate: float, count: int) -> Outcome:
        """``count`` requests, from the first arrival to the last answer."""
        places = self.fleet.places
        if self._route is None:
            self._replicas = [Replica(self, places)]
        else:
            self._replicas = [Replica(self, [replace(place, round_trip=0.0)]) for place in places]
        for each in self._replicas:
            await each.load()
        began, self._left = self._loop.time(), count
        self._arrive(rate, count, began, began)
        await self._answered
        seconds = self._loop.time() - began
        self.outcome.seconds = seconds
        self.outcome.core = max(each.core.busy for each in self._replicas) / seconds
        self.outcome.worker = self.outcome.worked / seconds / len(places)
        for each in self._replicas:
            await each.pool.close(0.0)
        return self.outcome

    def _arrive(self, rate: float, count: int, began: float, at: float) -> None:
        """Lets one request come, and then the next."""
        is_long = self._arrivals.random() < self.fleet.long
        body = b"%g" % self.fleet.long_for if is_long else b"0"
        if self._route is None:
            target, way = self._replicas[0], 0.0
        else:
            number = self._route(self._replicas, self._chance)
            # The way is then from the balancer to the server, which has its worker beside it.
            target, way = self._replicas[number], self.fleet.places[number].round_trip / 2
        target.in_hand += 1

        def answer(request: Request) -> None:
            assert request.error is None
            self._loop.call_later(way, self._answer, target, began, at)

        self._loop.call_later(way, target.ask, body, answer)
        if count > 1:
            following = at + self._arrivals.expovariate(rate)
            self._loop.call_at(following, self._arrive, rate, count - 1, began, following)

    def _answer(self, target: Replica, began: float, at: float) -> None:
        target.in_hand -= 1
        self.outcome.answers.append((at - began, self._loop.time() - at))
        self._left -= 1
        if not self._left:
            self._answered.set_result(None)


class _Clock(selectors.SelectSelector):
    """Instead of waiting for ``timeout`` seconds it is later by so many."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return []


def simulate_pools(fleet: Fleet, route: Route | None, rate: float, count: int, seed: int = 1) -> Outcome:
    """``count`` requests, ``rate`` per second at random: to one server that has all workers at their places,
    or, with a ``route``, to a server beside each worker, by a balancer as far from it as the worker is.
    """
    clock = _Clock()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now  # type: ignore[method-assign]

    def fail(_: object, context: dict[str, Any]) -> None:
        raise context.get("exception") or SystemError(context["message"])

    loop.set_exception_handler(fail)

    async def main() -> Outcome:
        return await _World(fleet, route, seed).run(rate, count)

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


# -- routes: which server gets the next request


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = itertools.count()

    def __call__(self, replicas: Sequence[Replica], chance: Random) -> int:
        return next(self._next) % len(replicas)


def at_random(replicas: Sequence[Replica], chance: Random) -> int:
    """Any."""
    return chance.randrange(len(replicas))


def power_of_two(replicas: Sequence[Replica], chance: Random) -> int:
    """Of two at random, the one with fewer requests in hand."""
    first, second = chance.sample(range(len(replicas)), 2)
    return first if replicas[first].in_hand <= replicas[second].in_hand else second


def fewest(replicas: Sequence[Replica], chance: Random) -> int:
    """One with the fewest requests in hand."""
    return min(range(len(replicas)), key=lambda number: (replicas[number].in_hand, chance.random()))
