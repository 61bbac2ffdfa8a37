"""One queue or one beside each worker: the simulation against what must come out, and the program."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from benchmarks import queues
from benchmarks.servers import ROOT
from benchmarks.simulation.pools import (
    Fleet,
    Overhead,
    Place,
    RoundRobin,
    fewest,
    power_of_two,
    simulate_pools,
)

from modelserver.engine.simulation.costs import Cost

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.simulation.pools import Outcome, Route

GPU = Cost("gpu", 0.005, 0.00025)
EQUAL = Fleet(GPU, 32, [Place()] * 4)


def p99(outcome: Outcome) -> float:
    """Of all requests, in ms."""
    latencies = sorted(latency for _, latency in outcome.answers)
    return latencies[int(0.99 * len(latencies))] * 1e3


def test_a_lone_request_takes_the_way_the_core_and_its_batch() -> None:
    """Nothing else costs anything, wherever the queue is."""
    fleet = replace(EQUAL, places=[Place(1.0, 0.010)], jitter=0.0, overhead=Overhead(0.001, 0.002))
    for route in (None, RoundRobin()):
        outcome = simulate_pools(fleet, route, 0.1, 20)
        found = [latency for _, latency in outcome.answers]

        assert found == pytest.approx([0.010 + 0.001 + 0.002 + GPU.seconds(1)] * 20, rel=1e-3)


def test_workers_a_millisecond_away_carry_the_load_of_those_here() -> None:
    """Under more than they can do they take 1 % longer; a way between any two batches would cost them 8 %."""
    rate = 1.3 * EQUAL.capacity
    here = simulate_pools(EQUAL, None, rate, 2000)
    there = simulate_pools(replace(EQUAL, places=[Place(1.0, 0.001)] * 4), None, rate, 2000)

    assert there.seconds < 1.03 * here.seconds


@pytest.mark.parametrize("route", [RoundRobin(), power_of_two, fewest])
def test_one_queue_is_ahead_of_one_beside_each_equal_worker(route: Route) -> None:
    """Also in the 99th percentile at 0.85, for nothing waits at a busy worker while another is free."""
    rate = 0.85 * EQUAL.capacity

    assert p99(simulate_pools(EQUAL, None, rate, 2500)) < 0.9 * p99(simulate_pools(EQUAL, route, rate, 2500))


def test_one_seed_gives_one_result() -> None:
    """Two simulations are alike to the last digit."""
    fleet = replace(EQUAL, places=[Place(1.0, 0.001), Place(2.0, 0.002)], long=0.01, long_for=0.05)

    assert simulate_pools(fleet, None, 500.0, 500) == simulate_pools(fleet, None, 500.0, 500)


def test_the_program_prints_a_table_for_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each load and queue, and all of them as JSON."""
    out = tmp_path / "out.json"
    small = ["--workers", "2", "--requests", "200", "--loads", "0.3", "0.6", "--queues", "one", "random"]
    status = queues.main([*small, "--out", str(out)])
    said = capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]

    assert status == 0
    assert [said.count(f"## {kind}\n") for kind in queues.KINDS] == [1, 1, 1]
    assert said.count("| random ") == 6
    assert len(rows) == 12
    assert all(0 < row["core"] < 1 and 0 < row["worker"] <= 1 for row in rows)


def test_a_dry_run_simulates_nothing() -> None:
    """It names the machine and what would be simulated."""
    command = [sys.executable, "-m", "benchmarks.queues", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "one slow: loads 0.3, 0.6, 0.85, 0.95" in done.stdout
