"""The simulated server: what comes out is checked against theory, and the policies against each other."""

from itertools import islice, takewhile
from random import Random

import pytest
from tests.ext.console.simulation.arrivals import OPEN, poisson

from modelserver.engine.pools.spec import PoolLimits
from modelserver.ext.console.simulation.costs import Cost
from modelserver.ext.console.simulation.engine import SimulatedServer, Simulation
from modelserver.ext.console.simulation.figures import summarize

MEDIUM = Cost(0.040, 0.004)


def limits(size=8, policy="greedy", waiting=1_000_000):
    return PoolLimits(size, policy, 0.1, waiting, 1 << 40)


def simulated(policy, server, load, pattern="poisson", requests=8000):
    """One run with a fixed seed."""
    rate = load * server.workers * 8 / server.cost.seconds(8)
    seconds = requests / rate
    times = takewhile(lambda at: at < seconds, OPEN[pattern](rate, Random(5)))
    trace = Simulation(server, limits(policy=policy), times).run()
    return summarize(trace, 0.1 * seconds, seconds, server.workers)


def test_a_worker_with_batches_of_one_is_the_queue_of_the_books():
    """M/D/1 at a load of 0.5: the mean wait is half a service time (Pollaczek and Khinchine)."""
    server = SimulatedServer(Cost(0.0, 0.010))
    times = takewhile(lambda at: at < 1000.0, poisson(50.0, Random(2)))
    trace = Simulation(server, limits(1), times).run()
    mean = sum(latency for _, latency in trace.answers) / len(trace.answers)

    assert mean == pytest.approx(0.010 + 0.005, rel=0.03)
    assert {size for _, size, _ in trace.batches} == {1}


def test_every_request_is_answered_once_and_never_too_soon():
    """All that came is answered, none in less than the time of a batch, no worker twice at a time."""
    server = SimulatedServer(MEDIUM, workers=3, overhead=0.001)
    times = list(islice(poisson(100.0, Random(3)), 2000))
    trace = Simulation(server, limits(policy="adaptive"), times).run()

    assert sorted(arrived for arrived, _ in trace.answers) == times
    assert min(latency for _, latency in trace.answers) >= MEDIUM.seconds(1)
    assert max(size for _, size, _ in trace.batches) <= 8
    moments = [m for end, _, s in trace.batches for m in ((end - s + 1e-9, 1), (end, -1))]
    busy, running = 0, []
    for _, change in sorted(moments):
        busy += change
        running.append(busy)
    assert max(running) == 3


def test_a_full_queue_refuses():
    """More than the queue takes is counted, not kept."""
    server = SimulatedServer(Cost(1.0, 0.0))
    trace = Simulation(server, limits(1, waiting=2), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]).run()

    # One runs, one is sent in advance, two wait.
    assert len(trace.answers) == 4
    assert trace.refused == 2


def test_the_same_arrivals_give_one_result():
    """Two runs are alike to the last digit."""
    server = SimulatedServer(MEDIUM, workers=2)

    assert simulated("adaptive", server, 0.6, "bursty", 2000) == simulated(
        "adaptive", server, 0.6, "bursty", 2000
    )


def test_adaptive_beats_greedy_with_four_workers_at_a_middle_load():
    """Poisson at 0.6 of the capacity: less worker time, and a lower p50 and p99 too."""
    server = SimulatedServer(MEDIUM, workers=4)
    greedy, adaptive = simulated("greedy", server, 0.6), simulated("adaptive", server, 0.6)

    assert adaptive.busy / adaptive.rate < 0.92 * greedy.busy / greedy.rate
    assert adaptive.p50_ms < 0.95 * greedy.p50_ms
    assert adaptive.p99_ms < 0.90 * greedy.p99_ms
    assert adaptive.rate == pytest.approx(greedy.rate, rel=0.02)


@pytest.mark.parametrize("pattern", ["poisson", "bursty", "diurnal"])
@pytest.mark.parametrize("workers", [1, 4])
def test_adaptive_never_costs_much(pattern, workers):
    """Whatever the arrivals and the load: no more worker time than greedy, latencies at most 12 % higher."""
    server = SimulatedServer(MEDIUM, workers=workers)
    for load in (0.1, 0.6):
        greedy = simulated("greedy", server, load, pattern, 3000)
        adaptive = simulated("adaptive", server, load, pattern, 3000)

        assert adaptive.busy / adaptive.rate < 1.01 * greedy.busy / greedy.rate
        assert adaptive.p50_ms < 1.12 * greedy.p50_ms
        assert adaptive.p99_ms < 1.12 * greedy.p99_ms
