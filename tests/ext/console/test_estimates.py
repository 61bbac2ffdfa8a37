"""What would happen if: costs and arrivals from what was measured, and what is simulated with them."""

import asyncio

import pytest
from tests.ext.console.doubles import Waiting

from modelserver.engine.telemetry.families import REQUEST_BOUNDS
from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.ext.console import estimates
from modelserver.ext.console.arrivals import ArrivalHistory, ArrivalInterval
from modelserver.ext.console.histograms import quantile

NOW = estimates.Choice(size=1, policy="greedy", delay=100, workers=1)
LATENCIES = [0.0] * 8 + [3.0, 1.0] + [0.0] * (len(REQUEST_BOUNDS) - 9)


def interval(seconds, arrived, batches=1, instances=1, worked=0.1):
    return ArrivalInterval(seconds, arrived, 0, batches, instances, worked, seconds)


def intervals(sizes, fixed=0.010, each=0.002):
    """Half seconds with five batches of each size, as a handler of that cost would have them."""
    return [interval(0.5, 5 * n, 5, 5 * n, 5 * (fixed + each * n)) for n in sizes]


def measured(history):
    return ArrivalHistory(history, LATENCIES, 0.0, REQUEST_BOUNDS)


def question(then=NOW, factor=1.0):
    return estimates.EstimateRequest("m", "1.0", NOW, then, factor)


def estimate_of(history, then=NOW, factor=1.0):
    return estimates.estimate(question(then, factor), measured(history))


def test_the_cost_is_that_of_the_measured_batches():
    """Intervals with batches of several sizes tell fixed cost from cost per instance."""
    cost, is_guess = estimates.cost_of(measured(intervals([1, 2, 4, 3])))
    assert (cost.fixed, cost.each, is_guess) == (pytest.approx(0.010), pytest.approx(0.002), False)


def test_batches_of_one_size_leave_a_guess():
    """Half of their cost is taken as fixed, and the estimate says so; without batches there is none."""
    cost, is_guess = estimates.cost_of(measured(intervals([2, 2])))

    assert (cost.fixed, cost.each, is_guess) == (pytest.approx(0.007), pytest.approx(0.0035), True)
    with pytest.raises(BadRequest, match="No batches"):
        estimates.cost_of(measured([interval(0.5, 3, 0, 0, 0.0)]))


def test_arrivals_are_those_that_were_measured():
    """As many per interval as came there, in order, and more or fewer of them if asked for."""
    history = [(1.0, 10.0), (1.0, 0.0), (2.0, 30.0)]
    times, seconds = estimates.arrivals(history, 1.0)
    twice, _ = estimates.arrivals(history, 2.0)

    assert (len(times), seconds) == (40, 4.0)
    assert times == sorted(times)
    assert [sum(low <= at < low + 1 for at in times) for low in (0, 1)] == [10, 0]
    assert len(twice) == 80
    assert len(estimates.arrivals(history, 0.25)[0]) == 10


def test_what_can_be_simulated_is_taken_whole():
    """Every interval, with and without requests."""
    history = [interval(1.0, 5000), interval(3.0, 0), interval(2.0, 3000)]
    assert estimates.stretches(measured(history), 8000) == [(1.0, 5000), (3.0, 0), (2.0, 3000)]


def test_more_is_taken_in_stretches_from_all_of_it():
    """Each as it was: quiet and busy hours have the same part in them as in the day."""
    history = [*[interval(900.0, 900)] * 40, interval(5000.0, 0), *[interval(1.0, 100)] * 3600]
    result = estimates.stretches(measured(history), 8000)
    busy = sum(arrived for seconds, arrived in result if arrived > 50 * seconds)
    quiet = sum(arrived for seconds, arrived in result if arrived < 2 * seconds)

    assert sum(arrived for _, arrived in result) == pytest.approx(396_000 / 50)
    assert quiet / busy == pytest.approx(0.1, abs=0.03)
    assert max(seconds for seconds, arrived in result if arrived) < 900.0
    assert len(estimates.arrivals(estimates.stretches(measured([interval(1.0, 4000)]), 80), 100.0)[0]) == 8000


def test_a_billion_requests_are_divided_as_quickly_as_few():
    """What is kept takes time, not what is left out; a pause within a kept stretch belongs to it."""
    history = [interval(1.0, 10**9 - 1), interval(7.0, 0), interval(1.0, 1)]
    result = estimates.stretches(measured(history), 80)

    assert len(result) == 42
    assert sum(arrived for _, arrived in result) == pytest.approx(80)
    assert result[-2:] == [(7.0, 0.0), (1.0, 1.0)]


def test_larger_batches_save_an_overloaded_worker():
    """The measured cost allows 83 requests/s alone, 400 in batches of 16: at 100/s only those keep up."""
    history = [interval(0.5, 50, 40, 50, 40 * 0.010 + 50 * 0.002), *intervals([1, 4], 0.010, 0.002)] * 20
    then = estimates.Choice(size=16, policy="greedy", delay=100, workers=1)
    made = estimate_of(history, then)

    assert made.fixed_ms == pytest.approx(10.0, rel=0.05)
    assert not made.is_guess
    assert made.then.p99_ms < 0.2 * made.now.p99_ms
    assert made.then.batch > 1.2
    assert made.now.batch == 1.0
    assert 0.0 < made.then.busy <= 1.0
    assert estimate_of(history, then) == made


def test_what_the_queue_does_not_take_is_refused():
    """An overloaded server with a short queue answers what it can."""
    made = estimate_of([interval(0.5, 50, 5, 5, 0.5)] * 10, estimates.Choice(1, "greedy", 100, 1, queue=5))

    assert made.then.refused > 50
    assert made.then.rate == pytest.approx(10.0, rel=0.2)


def test_what_was_measured_stands_beside_it():
    """Of the whole time, also if only a part of it is simulated."""
    made = estimate_of([ArrivalInterval(900.0, 90_000, 900, 9000, 90_000, 450.0, 1800.0)] * 2)

    assert (made.of_requests, made.of_seconds) == (181_800, 1800.0)
    assert made.requests == pytest.approx(8000, rel=0.02)
    assert made.seconds == pytest.approx(made.requests / 101, rel=0.01)
    assert (made.measured.rate, made.measured.refused, made.measured.batch) == (100.0, 1.0, 10.0)
    assert made.measured.busy == 0.25
    assert made.measured.p50_ms == pytest.approx(9.17, abs=0.01)


def test_percentiles_are_interpolated_within_a_bucket():
    """Prometheus does the same; values above the last bound count as that bound."""
    bounds = (0.01, 0.02)
    results = [
        quantile(share, bounds, counts)
        for share, counts in ((0.5, [2, 2, 0]), (0.75, [2, 2, 0]), (0.5, [0, 0, 3]), (0.5, [0, 0, 0]))
    ]

    assert results == [10, 15, 20, None]


async def test_simulation_runs_in_a_helper_process():
    """The result is the same as in this process, and the event loop is free meanwhile."""
    history = measured(intervals([1, 4]) * 10)
    maker = estimates.Estimates()
    try:
        assert await maker.make(question(), history) == estimates.estimate(question(), history)
        with pytest.raises(BadRequest, match=r"No requests .* Send some requests first\."):
            await maker.make(question(), measured([interval(0.5, 0)]))
    finally:
        maker.close()


async def test_only_so_many_wait():
    """Further ones are refused at once; those that are given up make room."""
    maker = estimates.Estimates()
    maker._helpers.close()
    maker._helpers = Waiting()
    history = measured([interval(0.5, 1)])
    making = [asyncio.ensure_future(maker.make(question(), history)) for _ in range(estimates.MOST)]
    await asyncio.sleep(0)
    with pytest.raises(ServiceUnavailable, match="try later"):
        await maker.make(question(), history)
    for each in making:
        each.cancel()
    await asyncio.wait(making)
    making = [asyncio.ensure_future(maker.make(question(), history)) for _ in range(estimates.MOST)]
    await asyncio.sleep(0)

    assert not any(each.done() for each in making)
    for each in making:
        each.cancel()
