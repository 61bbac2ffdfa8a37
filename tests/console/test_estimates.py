"""What would happen if: costs and arrivals from what was measured, and what is simulated with them."""

from __future__ import annotations

import math

import pytest

from modelserver.console.estimates import Asked, Choice, Estimates, Interval, arrivals, cost_of, estimate
from modelserver.errors import BadRequest

NOW = Choice(size=1, policy="greedy", delay=100, workers=1)


def intervals(sizes: list[int], fixed: float = 0.010, each: float = 0.002) -> list[Interval]:
    """Half seconds with five batches of each size, as a handler of that cost would have them."""
    return [Interval(0.5, 5 * n, 5, 5 * n, 5 * (fixed + each * n)) for n in sizes]


def test_the_cost_is_that_of_the_measured_batches() -> None:
    """Intervals with batches of several sizes tell fixed cost from cost per instance."""
    cost, is_guess = cost_of(intervals([1, 2, 4, 3]))

    assert (cost.fixed, cost.each, is_guess) == (pytest.approx(0.010), pytest.approx(0.002), False)


def test_batches_of_one_size_leave_a_guess() -> None:
    """Half of their cost is taken as fixed, and the estimate says so; without batches there is none."""
    cost, is_guess = cost_of(intervals([2, 2]))

    assert (cost.fixed, cost.each, is_guess) == (pytest.approx(0.007), pytest.approx(0.0035), True)
    with pytest.raises(BadRequest, match="No batches"):
        cost_of([Interval(0.5, 3, 0, 0, 0.0)])


def test_arrivals_are_those_that_were_measured() -> None:
    """As many per interval as came there, in order, and more or fewer of them if asked for."""
    history = [Interval(1.0, 10, 1, 10, 0.1), Interval(1.0, 0, 0, 0, 0.0), Interval(2.0, 30, 1, 30, 0.1)]
    times, seconds = arrivals(history, 1.0)
    twice, _ = arrivals(history, 2.0)

    assert (len(times), seconds) == (40, 4.0)
    assert times == sorted(times)
    assert [sum(low <= at < low + 1 for at in times) for low in (0, 1)] == [10, 0]
    assert len(twice) == 80
    assert len(arrivals(history, 0.25)[0]) == 10


def test_the_newest_arrivals_count() -> None:
    """More than can be simulated in a moment is cut at the old end."""
    history = [Interval(1.0, 5000, 1, 1, 0.1), Interval(3.0, 4000, 1, 1, 0.1)]
    times, seconds = arrivals(history, 1.0)

    assert (len(times), seconds) == (4000, 3.0)
    assert len(arrivals(history[1:], 100.0)[0]) == 8000


def test_larger_batches_save_an_overloaded_worker() -> None:
    """The measured cost allows 83 requests/s alone, 400 in batches of 16: at 100/s only those keep up."""
    history = [Interval(0.5, 50, 40, 50, 40 * 0.010 + 50 * 0.002), *intervals([1, 4], 0.010, 0.002)] * 20
    asked = Asked(history, NOW, Choice(size=16, policy="greedy", delay=100, workers=1))
    told = estimate(asked)

    assert told.fixed_ms == pytest.approx(10.0, rel=0.05)
    assert not told.is_guess
    assert told.now.p99_ms is not None
    assert told.then.p99_ms is not None
    assert told.then.p99_ms < 0.2 * told.now.p99_ms
    assert told.then.batch > 1.2
    assert told.now.batch == 1.0
    assert 0.0 < told.then.busy <= 1.0
    assert estimate(asked) == told


def test_what_the_queue_does_not_take_is_refused() -> None:
    """An overloaded server with a short queue answers what it can."""
    history = [Interval(0.5, 50, 5, 5, 0.5)] * 10
    told = estimate(Asked(history, NOW, Choice(1, "greedy", 100, 1, queue=5)))

    assert told.then.refused > 50
    assert told.then.rate == pytest.approx(10.0, rel=0.2)


async def test_a_helper_simulates() -> None:
    """The answer is the same as here, and the event loop is free meanwhile."""
    asked = Asked(intervals([1, 4]) * 10, NOW, NOW)
    estimates = Estimates()
    try:
        assert await estimates.make(asked) == estimate(asked)
        with pytest.raises(BadRequest, match="No requests"):
            await estimates.make(Asked([Interval(0.5, 0, 1, 1, 0.1)], NOW, NOW))
    finally:
        estimates.close()


def test_nothing_is_not_a_number() -> None:
    """Latencies of nothing are left out of the JSON instead."""
    told = estimate(Asked([Interval(0.5, 1, 1, 1, 0.1)], NOW, NOW))

    assert told.now.p50_ms is None or not math.isnan(told.now.p50_ms)
