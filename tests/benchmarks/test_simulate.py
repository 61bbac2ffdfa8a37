"""The simulated server: what comes out is checked against theory, and the policies against each other."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice, pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import simulate
from benchmarks.servers import ROOT
from benchmarks.simulation.arrivals import OPEN, Clients, bursty, diurnal, poisson
from benchmarks.simulation.costs import Cost, fit, parse_cost, read_costs
from benchmarks.simulation.engine import Server, Simulation
from benchmarks.simulation.figures import Figures, summarize
from benchmarks.simulation.measured import Case, compare
from benchmarks.simulation.open_loop import Answer, Seen, run_open_loop

from modelserver.batching.policies import Adaptive, Greedy, Policy, Window

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEDIUM = Cost("medium", 0.040, 0.004)
POLICIES: dict[str, Callable[[], Policy]] = {
    "greedy": Greedy,
    "adaptive": lambda: Adaptive(0.1),
    "window": lambda: Window(0.1),
}


def simulated(
    policy: str, server: Server, load: float, pattern: Any = "poisson", requests: int = 8000
) -> Figures:
    """One run with a fixed seed."""
    rate = load * server.cost.capacity(server.batch_size, server.workers)
    seconds = requests / rate
    source = OPEN[pattern](rate, Random(5))
    trace = Simulation(server, POLICIES[policy](), source, 5).run(seconds)
    return summarize(trace, 0.1 * seconds, seconds)


# -- arrivals and costs


@pytest.mark.parametrize("arrivals", [poisson, bursty, diurnal])
def test_arrivals_have_the_rate_that_was_asked_for(arrivals: Any) -> None:
    """Twenty thousand ascending times, as many per second as wanted."""
    times = list(islice(arrivals(100.0, Random(1)), 20_000))

    assert times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(100.0, rel=0.1)


def test_bursts_have_pauses() -> None:
    """A Poisson stream of this rate has no gap of a tenth of a second, a bursty one has many."""
    gaps = {
        name: sum(b - a > 0.1 for a, b in pairwise(times))
        for name, times in (
            (name, list(islice(OPEN[name](200.0, Random(1)), 5000))) for name in ("poisson", "bursty")
        )
    }

    assert gaps["poisson"] == 0
    assert gaps["bursty"] > 5


def test_the_day_has_its_noon_in_the_first_half() -> None:
    """The first half of a period has the higher rate: 1 + 2/pi * swing to 1 - 2/pi * swing."""
    times = [at % 20.0 for at in islice(diurnal(500.0, Random(1)), 40_000)]
    day = sum(at < 10.0 for at in times)

    assert day / (len(times) - day) == pytest.approx(1.382 / 0.618, rel=0.05)


def test_a_cost_is_fitted_and_parsed() -> None:
    """Points of a line give the line; text gives milliseconds; what makes no sense is an error."""
    found = fit("x", [(n, 0.020 + 0.1 * n) for n in (1, 2, 8)])

    assert (found.fixed, found.each) == pytest.approx((0.020, 0.1))
    assert parse_cost("gpu=5,0.5") == Cost("gpu", 0.005, 0.0005)
    assert parse_cost("gpu=5,0.5").capacity(10, 2) == pytest.approx(2000.0)
    with pytest.raises(ValueError, match="two sizes"):
        fit("x", [(8, 1.0), (8, 1.1)])
    with pytest.raises(ValueError, match="positive"):
        parse_cost("x=-1,2")


def test_costs_come_from_the_benchmarks_json(tmp_path: Path) -> None:
    """A batch took its size by the rate; void rates are left out."""
    rates = [(1, 1 / 0.12), (4, 4 / 0.42), (8, None)]
    rows = [{"batch": batch, "figure": {"rate": rate}} for batch, rate in rates]
    (tmp_path / "b.json").write_text(json.dumps({"models": [{"model": "resnet152", "rows": rows}]}))

    (cost,) = read_costs(tmp_path / "b.json")

    assert cost.name == "resnet152"
    assert (cost.fixed, cost.each) == pytest.approx((0.020, 0.100))


# -- the engine


def test_a_worker_with_batches_of_one_is_the_queue_of_the_books() -> None:
    """M/D/1 at a load of 0.5: the mean wait is half a service time (Pollaczek and Khinchine)."""
    server = Server(Cost("x", 0.0, 0.010), batch_size=1)
    trace = Simulation(server, Greedy(), poisson(50.0, Random(2)), 2).run(1000.0)
    mean = sum(latency for _, latency in trace.answers) / len(trace.answers)

    assert mean == pytest.approx(0.010 + 0.005, rel=0.03)
    assert {size for _, size, _ in trace.batches} == {1}


def test_every_request_is_answered_once_and_never_too_soon() -> None:
    """All that came is answered, none in less than the time of a batch, no worker twice at a time."""
    server = Server(MEDIUM, batch_size=8, workers=3, overhead=0.001)
    times = list(islice(poisson(100.0, Random(3)), 2000))
    trace = Simulation(server, Adaptive(0.1), iter(times), 3).run(1e9)

    assert sorted(arrived for arrived, _ in trace.answers) == times
    assert min(latency for _, latency in trace.answers) >= MEDIUM.seconds(1)
    assert max(size for _, size, _ in trace.batches) <= 8
    moments = [m for end, _, s in trace.batches for m in ((end - s + 1e-9, 1), (end, -1))]
    busy, running = 0, []
    for _, change in sorted(moments):
        busy += change
        running.append(busy)
    assert max(running) == 3


def test_a_full_queue_refuses() -> None:
    """More than the queue takes is counted, not kept."""
    server = Server(Cost("x", 1.0, 0.0), batch_size=1, queue_size=2)
    trace = Simulation(server, Greedy(), iter([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]), 1).run(10.0)

    # One runs, one is handed over in advance, two wait.
    assert len(trace.answers) == 4
    assert trace.refused == 2


def test_a_closed_loop_has_as_many_requests_as_clients() -> None:
    """One client without a pause gets one answer per batch time, whatever the policy."""
    for make in (Greedy, lambda: Adaptive(0.1)):
        trace = Simulation(Server(MEDIUM, 8), make(), Clients(1, 0.0), 1).run(44.0)

        assert len(trace.answers) == pytest.approx(1000, abs=1)
        assert max(latency for _, latency in trace.answers) == pytest.approx(0.044)


def test_one_seed_gives_one_result() -> None:
    """Two runs are alike to the last digit."""
    server = Server(MEDIUM, 8, workers=2)

    assert simulated("adaptive", server, 0.6, "bursty", 2000) == simulated(
        "adaptive", server, 0.6, "bursty", 2000
    )


# -- what the policies are worth


def test_adaptive_beats_greedy_with_four_workers_at_a_middle_load() -> None:
    """Poisson at 0.6 of the capacity: less worker time, and a lower p50 and p99 too."""
    server = Server(MEDIUM, batch_size=8, workers=4)
    greedy, adaptive = simulated("greedy", server, 0.6), simulated("adaptive", server, 0.6)

    assert adaptive.device_ms < 0.92 * greedy.device_ms
    assert adaptive.p50_ms < 0.95 * greedy.p50_ms
    assert adaptive.p99_ms < 0.90 * greedy.p99_ms
    assert adaptive.rate == pytest.approx(greedy.rate, rel=0.02)


def test_adaptive_spares_one_worker_at_a_middle_load() -> None:
    """Poisson at 0.6 of the capacity: a sixteenth less worker time, p50 and p99 at most 7 % higher."""
    server = Server(MEDIUM, batch_size=8)
    greedy, adaptive = simulated("greedy", server, 0.6), simulated("adaptive", server, 0.6)

    assert adaptive.device_ms < 0.94 * greedy.device_ms
    assert adaptive.p50_ms < 1.07 * greedy.p50_ms
    assert adaptive.p99_ms < 1.07 * greedy.p99_ms


@pytest.mark.parametrize("workers", [1, 4])
def test_adaptive_beats_a_window_at_a_middle_load(workers: int) -> None:
    """The documented default of 100 ms loses in p50 and p99 at 0.5 of the capacity."""
    server = Server(MEDIUM, batch_size=8, workers=workers)
    window, adaptive = simulated("window", server, 0.5), simulated("adaptive", server, 0.5)

    assert adaptive.p50_ms < 0.9 * window.p50_ms
    assert adaptive.p99_ms < 0.9 * window.p99_ms


@pytest.mark.parametrize("pattern", ["poisson", "bursty", "diurnal"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_adaptive_never_costs_much(pattern: str, workers: int) -> None:
    """Whatever the arrivals and the load: no more worker time than greedy, latencies at most 12 % higher."""
    server = Server(MEDIUM, batch_size=8, workers=workers)
    for load in (0.1, 0.4, 0.8):
        greedy = simulated("greedy", server, load, pattern, 3000)
        adaptive = simulated("adaptive", server, load, pattern, 3000)

        assert adaptive.device_ms < 1.01 * greedy.device_ms
        assert adaptive.p50_ms < 1.12 * greedy.p50_ms
        assert adaptive.p99_ms < 1.12 * greedy.p99_ms


def test_adaptive_does_not_hold_where_a_batch_saves_little() -> None:
    """With the cost of ResNet-152 on two cores, 20 + 100 n ms, it is greedy to within a hundredth."""
    server = Server(Cost("resnet152", 0.020, 0.100), batch_size=8)
    greedy, adaptive = simulated("greedy", server, 0.6), simulated("adaptive", server, 0.6)

    assert adaptive.p50_ms == pytest.approx(greedy.p50_ms, rel=0.01)
    assert adaptive.device_ms == pytest.approx(greedy.device_ms, rel=0.01)


# -- the program


@pytest.mark.parametrize("more", [[], ["--validate"]])
def test_a_dry_run_of_the_simulator_starts_nothing(more: list[str]) -> None:
    """It names the machine and what it would do."""
    command = [sys.executable, "-m", "benchmarks.simulate", "--dry-run", *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "- cpu: " in done.stdout
    assert ("adaptive at 0.85: 20 s" if more else "medium, 4 workers, bursty: loads 0.1") in done.stdout


def test_the_program_prints_a_table_and_writes_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row per policy and load, JSON of all, and a picture where matplotlib is installed."""
    plots = []
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        pass
    else:
        plots = ["--plots", str(tmp_path / "plots")]
    out = tmp_path / "out.json"
    small = ["--requests", "300", "--loads", "0.3,0.6", "--workers", "2", "--patterns", "poisson", "closed"]
    status = simulate.main([*small, *plots, "--out", str(out)])
    said = capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]

    assert status == 0
    assert len(rows) == 2 * 2 * 4
    assert said.count("| adaptive ") == 4
    assert "## medium, closed, 2 workers" in said
    if plots:
        assert (tmp_path / "plots" / "medium-poisson-2-workers.png").read_bytes()[:4] == b"\x89PNG"


def test_what_was_measured_is_simulated_with_the_same_arrivals() -> None:
    """Answers that the simulator itself made are found again: no difference."""
    server = Server(MEDIUM, 8, workers=2)
    trace = Simulation(server, Greedy(), poisson(150.0, Random(1)), 1).run(20.0)
    sizes = {round(end, 9): size for end, size, _ in trace.batches}
    answers = [
        Answer(at, latency, size, 0.0, MEDIUM.seconds(size))
        for at, latency in trace.answers
        if (size := sizes[round(at + latency, 9)])
    ]
    pair = compare(
        Case("greedy", 0.0, 0.6), server, Seen(answers, {}, [0.0]), overhead=0.0, seconds=20.0, seed=1
    )

    assert (pair.fitted.fixed, pair.fitted.each) == pytest.approx((0.040, 0.004))
    assert pair.differences() == pytest.approx((0.0, 0.0), abs=1e-3)
    assert pair.measured.device_ms == pytest.approx(pair.simulated.device_ms, rel=0.02)
    assert simulate.marks([("greedy", pair)])[0].startswith("reached: greedy at 0.6, within 15%")


def test_a_server_that_is_gone_is_counted_not_raised() -> None:
    """Each request that finds no server is a failure."""
    seen = run_open_loop("127.0.0.1", 1, "/", [0.0, 0.001], connections=1)

    assert seen.answers == []
    assert seen.failures == {"connect": 2}


@pytest.mark.slow
def test_a_real_server_is_measured_beside_the_simulated_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six measurements, nothing fails, and each gets its mark; how near they are is not for a test."""
    out = tmp_path / "out.json"
    status = simulate.main(["--validate", "--duration", "1", "--cost", "x=20,2", "--out", str(out)])
    said = capsys.readouterr().out
    pairs = json.loads(out.read_text())["pairs"]

    assert status == 0, said
    assert [each["pair"]["case"]["load"] for each in pairs] == [0.3, 0.6, 0.85, 0.6, 0.6, 0.6]
    assert all(each["pair"]["measured"]["requests"] > 10 for each in pairs)
    assert said.lower().count("reached: ") == 6
