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
from benchmarks.simulation.arrivals import OPEN, bursty, diurnal, poisson
from benchmarks.simulation.costs import parse_cost, read_costs
from benchmarks.simulation.measured import Case, compare
from benchmarks.simulation.open_loop import Answer, Seen, run_open_loop

from modelserver.engine.batching.policies import Greedy
from modelserver.engine.simulation.costs import Cost, fit
from modelserver.engine.simulation.engine import Server, Simulation

if TYPE_CHECKING:
    from pathlib import Path

MEDIUM = Cost("medium", 0.040, 0.004)
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
    status = simulate.main(
        ["--validate", "--duration", "1", "--cost", "x=20,2", "--out", str(out), "--plots", str(tmp_path)]
    )
    said = capsys.readouterr().out
    pairs = json.loads(out.read_text())["pairs"]

    assert status == 0, said
    assert [each["pair"]["case"]["load"] for each in pairs] == [0.3, 0.6, 0.85, 0.6, 0.6, 0.6]
    assert all(each["pair"]["measured"]["requests"] > 10 for each in pairs)
    assert said.lower().count("reached: ") == 6
    assert (tmp_path / "measured.png").is_file()
