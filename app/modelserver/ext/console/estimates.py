"""Estimates of other settings: a simulation with the model's cost and arrivals as they were measured.

Of more requests than can be simulated, some stretches are, spread evenly over all. The simulation runs in a
helper process, so the event loop does not stall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from modelserver.engine.offload.helpers import Helpers
from modelserver.engine.pools.spec import PoolLimits
from modelserver.errors import BadRequest, PayloadTooLarge, ServiceUnavailable
from modelserver.ext.console.arrivals import ArrivalHistory
from modelserver.ext.console.histograms import quantile
from modelserver.ext.console.simulation.costs import Cost, fit
from modelserver.ext.console.simulation.engine import SimulatedServer, Simulation
from modelserver.ext.console.simulation.figures import EstimatedFigures, summarize

# Requests of one simulation, and the stretches that they are taken from.
_MOST_REQUESTS: Final = 8000
_STRETCHES: Final = 40
# Estimates that are being made or wait.
MOST: Final = 8
# CPU seconds and bytes of address space of the helper.
_SECONDS: Final = 10.0
_MEMORY: Final = 1 << 30
# The share of the time, at its start, that does not count: the policy learns.
_WARMUP: Final = 0.1
_SEND: Final = "Send some requests first."
# Mean sizes of batches that differ by less cannot separate fixed cost from cost per instance.
_SPREAD: Final = 0.5


class Choice(msgspec.Struct, frozen=True):
    """The settings of a version; ``delay`` in ms, ``queue`` in requests."""

    size: Annotated[int, Meta(ge=1, le=1024)]
    policy: Literal["adaptive", "greedy", "window"]
    delay: Annotated[float, Meta(ge=0, le=60_000)]
    workers: Annotated[int, Meta(ge=1, le=64)]
    queue: Annotated[int, Meta(ge=1, le=1_000_000)] = 100


class EstimateRequest(msgspec.Struct, frozen=True):
    """A model, and its settings to compare; ``factor`` multiplies the arrivals."""

    model: str
    version: str
    now: Choice
    then: Choice
    factor: Annotated[float, Meta(gt=0.0, le=100.0)] = 1.0


class Estimate(msgspec.Struct, frozen=True):
    """What was measured, both simulations, and what they were made with.

    A batch of n takes ``fixed_ms`` + ``each_ms`` * n; ``is_guess``: all batches had about the same size, and
    half of their cost is taken as fixed. ``requests`` are simulated, of ``of_requests`` that came in
    ``of_seconds``.
    """

    fixed_ms: float
    each_ms: float
    is_guess: bool
    requests: int
    seconds: float
    of_requests: int
    of_seconds: float
    measured: EstimatedFigures
    now: EstimatedFigures
    then: EstimatedFigures


class Estimates:
    """Makes estimates, one at a time; a few may wait."""

    def __init__(self) -> None:
        self._helpers = Helpers("estimates", 1, _MEMORY, PayloadTooLarge)
        self._count = 0

    async def make(self, wish: EstimateRequest, measured: ArrivalHistory) -> Estimate:
        """Raises BadRequest if nothing was measured, or it takes too long; ServiceUnavailable if too many
        wait.
        """
        if self._count >= MOST:
            raise ServiceUnavailable(f"{MOST} estimates are being made at this time; try later.")
        self._count += 1
        try:
            return await self._helpers.call(_SECONDS, estimate, wish, measured)
        except PayloadTooLarge:
            raise BadRequest("This is too much to simulate; choose fewer requests.") from None
        finally:
            self._count -= 1

    def close(self) -> None:
        """Ends the helper."""
        self._helpers.close()


def estimate(wish: EstimateRequest, measured: ArrivalHistory) -> Estimate:
    """Simulates both choices; the same request always gives the same answer. Raises BadRequest."""
    history = measured.intervals
    cost, is_guess = cost_of(measured)
    times, seconds = arrivals(stretches(measured, _MOST_REQUESTS / wish.factor), wish.factor)
    if not times:
        raise BadRequest(f"No requests were measured to make an estimate of. {_SEND}")
    now, then = (_simulated(each, cost, measured.overhead, times, seconds) for each in (wish.now, wish.then))
    came, lasted = math.fsum(i.arrived for i in history), math.fsum(i.seconds for i in history)
    return Estimate(
        fixed_ms=cost.fixed * 1e3,
        each_ms=cost.each * 1e3,
        is_guess=is_guess,
        requests=len(times),
        seconds=seconds,
        of_requests=round(came),
        of_seconds=lasted,
        measured=_measured(measured, lasted),
        now=now,
        then=then,
    )


def cost_of(measured: ArrivalHistory) -> tuple[Cost, bool]:
    """The cost of a batch, and whether it is a guess. Raises BadRequest if nothing was measured."""
    history = measured.intervals
    points = [(each.instances / each.batches, each.worked / each.batches) for each in history if each.batches]
    points = [(size, seconds) for size, seconds in points if size > 0 and seconds > 0]
    if not points:
        raise BadRequest(f"No batches were measured to make an estimate of. {_SEND}")
    sizes = [size for size, _ in points]
    if max(sizes) - min(sizes) >= _SPREAD:
        return fit(points), False
    size, seconds = (math.fsum(column) / len(points) for column in zip(*points, strict=True))
    return Cost(seconds / 2, seconds / 2 / size), True


def stretches(measured: ArrivalHistory, most: float) -> list[tuple[float, float]]:
    """The seconds and requests of each interval, or if there were more than ``most``, of parts of some.

    All requests are divided into stretches of equally many; one of each group of stretches is taken, whole.
    """
    history = measured.intervals
    total = math.fsum(each.arrived for each in history)
    every = math.ceil(total / most)
    if every <= 1:
        return [(each.seconds, each.arrived) for each in history]
    length = total / (every * _STRETCHES)
    parts: list[tuple[float, float]] = []
    begin = 0.0
    for each in history:
        end = begin + each.arrived
        # The last stretch of each group is taken, beginning with the first that ends after the interval
        # begins.
        group = int(begin / (every * length))
        while (last := (group + 1) * every * length) - length <= end and group < _STRETCHES:
            inside = max(0.0, min(end, last) - max(begin, last - length))
            if each.arrived:
                parts.append((each.seconds * inside / each.arrived, inside))
            elif begin < last:
                parts.append((each.seconds, 0.0))
            group += 1
        begin = end
    return parts


def arrivals(history: Sequence[tuple[float, float]], factor: float) -> tuple[list[float], float]:
    """Ascending times, as many per interval as were measured, times ``factor``, and the seconds of all.

    Within an interval they are random.
    """
    chance = Random(1)  # noqa: S311 - no secret
    times: list[float] = []
    begin = owed = 0.0
    for seconds, arrived in history:
        owed += arrived * factor
        count = int(owed)
        owed -= count
        times += sorted(begin + chance.random() * seconds for _ in range(count))
        begin += seconds
    return times, begin


def _measured(measured: ArrivalHistory, seconds: float) -> EstimatedFigures:
    _, answered, lost, batches, instances, worked, available = map(
        math.fsum, zip(*measured.intervals, strict=True)
    )
    p50, p99 = (quantile(share, measured.bounds, measured.latencies) for share in (0.5, 0.99))
    return EstimatedFigures(
        rate=answered / seconds,
        refused=lost / seconds,
        batch=instances / batches,
        p50_ms=p50,
        p99_ms=p99,
        busy=worked / max(available, 1e-9),
    )


def _simulated(
    choice: Choice, cost: Cost, overhead: float, times: Sequence[float], seconds: float
) -> EstimatedFigures:
    server = SimulatedServer(cost, choice.workers, overhead)
    limits = PoolLimits(choice.size, choice.policy, choice.delay / 1e3, choice.queue, _MEMORY)
    trace = Simulation(server, limits, times).run()
    return summarize(trace, _WARMUP * seconds, seconds, choice.workers)
