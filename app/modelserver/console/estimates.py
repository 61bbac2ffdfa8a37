"""What would happen if: the model's cost and arrivals as measured, simulated with other settings.

A helper process simulates, so the event loop does not stall.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from modelserver.batching.policies import make_policy
from modelserver.errors import BadRequest, PayloadTooLarge
from modelserver.offload.helpers import Helpers
from modelserver.simulation.costs import Cost, fit
from modelserver.simulation.engine import Server, Simulation
from modelserver.simulation.figures import summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Of one simulation; the newest intervals count.
_MOST_REQUESTS: Final = 8000
# CPU seconds and bytes of address space of the helper.
_SECONDS: Final = 10.0
_MEMORY: Final = 1 << 30
# What comes first, while the policy learns, does not count.
_WARMUP: Final = 0.1
# Mean sizes of batches that differ by less do not tell fixed cost from cost per instance.
_SPREAD: Final = 0.5

_Count = Annotated[int, Meta(ge=0, le=10_000_000)]
_Seconds = Annotated[float, Meta(ge=0.0, le=3600.0)]


class Interval(msgspec.Struct, array_like=True, frozen=True):
    """What came and what was done in so many seconds; ``worked`` is the handlers' time in seconds."""

    seconds: _Seconds
    arrived: _Count
    batches: _Count
    instances: _Count
    worked: _Seconds


class Choice(msgspec.Struct, frozen=True):
    """The settings of a version; ``delay`` in ms, ``queue`` in requests."""

    size: Annotated[int, Meta(ge=1, le=1024)]
    policy: Literal["adaptive", "greedy", "window"]
    delay: Annotated[float, Meta(ge=0, le=60_000)]
    workers: Annotated[int, Meta(ge=1, le=64)]
    queue: Annotated[int, Meta(ge=1, le=1_000_000)] = 100


class Asked(msgspec.Struct, frozen=True):
    """What was measured, and the settings to compare.

    ``overhead``: seconds of a request beside queue and handler. ``factor``: of the arrivals.
    """

    history: Annotated[list[Interval], Meta(min_length=1, max_length=2000)]
    now: Choice
    then: Choice
    overhead: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    factor: Annotated[float, Meta(gt=0.0, le=100.0)] = 1.0


class Simulated(msgspec.Struct, frozen=True):
    """Answered and refused requests per second, mean batch, latencies, the share of time workers are busy."""

    rate: float
    refused: float
    batch: float
    p50_ms: float | None
    p99_ms: float | None
    busy: float


class Estimate(msgspec.Struct, frozen=True):
    """Both simulations, and what they were made with.

    A batch of n takes ``fixed_ms`` + ``each_ms`` * n; ``is_guess``: all batches had about the same size, and
    half of their cost is taken as fixed.
    """

    fixed_ms: float
    each_ms: float
    is_guess: bool
    requests: int
    seconds: float
    now: Simulated
    then: Simulated


class Estimates:
    """Makes estimates, one at a time."""

    def __init__(self) -> None:
        self._helpers = Helpers("estimates", 1, _MEMORY, PayloadTooLarge)

    async def make(self, asked: Asked) -> Estimate:
        """Raises BadRequest if nothing was measured, or it takes too long."""
        try:
            return await self._helpers.call(_SECONDS, estimate, asked)
        except PayloadTooLarge:
            raise BadRequest("This is too much to simulate; choose fewer requests.") from None

    def close(self) -> None:
        """Ends the helper."""
        self._helpers.close()


def estimate(asked: Asked) -> Estimate:
    """Simulates both choices; the same request always gives the same answer. Raises BadRequest."""
    cost, is_guess = cost_of(asked.history)
    times, seconds = arrivals(asked.history, asked.factor)
    if not times:
        raise BadRequest("No requests were measured to make an estimate of.")
    now, then = (
        _simulated(choice, cost, asked.overhead, times, seconds) for choice in (asked.now, asked.then)
    )
    return Estimate(
        *(cost.fixed * 1e3, cost.each * 1e3, is_guess, len(times), seconds, now, then),
    )


def cost_of(history: Sequence[Interval]) -> tuple[Cost, bool]:
    """The cost of a batch, and whether it is a guess. Raises BadRequest if nothing was measured."""
    points = [(each.instances / each.batches, each.worked / each.batches) for each in history if each.batches]
    points = [(size, seconds) for size, seconds in points if size > 0 and seconds > 0]
    if not points:
        raise BadRequest("No batches were measured to make an estimate of.")
    sizes = [size for size, _ in points]
    if max(sizes) - min(sizes) >= _SPREAD:
        return fit("measured", points), False
    size, seconds = (math.fsum(column) / len(points) for column in zip(*points, strict=True))
    return Cost("measured", seconds / 2, seconds / 2 / size), True


def arrivals(history: Sequence[Interval], factor: float) -> tuple[list[float], float]:
    """Ascending times, as many per interval as were measured, times ``factor``, and the seconds of all.

    Within an interval they are random. The newest intervals count if there are more than can be simulated.
    """
    kept: list[Interval] = []
    total = 0.0
    for each in reversed(history):
        total += each.arrived * factor
        if total > _MOST_REQUESTS and kept:
            break
        kept.append(each)
    chance = Random(1)  # noqa: S311 - no secret
    times: list[float] = []
    begin = owed = 0.0
    for each in reversed(kept):
        owed += each.arrived * factor
        count = min(int(owed), _MOST_REQUESTS - len(times))
        owed -= int(owed)
        times += sorted(begin + chance.random() * each.seconds for _ in range(count))
        begin += each.seconds
    return times, begin


def _simulated(
    choice: Choice, cost: Cost, overhead: float, times: Sequence[float], seconds: float
) -> Simulated:
    server = Server(cost, choice.size, choice.workers, overhead, choice.queue)
    coming: Iterator[float] = iter(times)
    trace = Simulation(server, make_policy(choice.policy, choice.delay / 1e3), coming, 1).run(math.inf)
    begin = _WARMUP * seconds
    figures = summarize(trace, begin, seconds)
    busy = figures.device_ms / 1e3 * figures.rate / choice.workers
    return Simulated(
        rate=figures.rate,
        refused=trace.refused / seconds if seconds else 0.0,
        batch=figures.batch,
        p50_ms=_known(figures.p50_ms),
        p99_ms=_known(figures.p99_ms),
        busy=busy,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
