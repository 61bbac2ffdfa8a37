"""Short requests among slow ones: the ideal queue, what is counted as held up, and the program."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest
from benchmarks import mixed
from benchmarks.mixed import LONG, OURS, SHORT, TORCHSERVE, Case, Latencies, Row, bimodal, lognormal, marks_of
from benchmarks.servers import ROOT
from benchmarks.simulation.single_queue import Served, idle_before, passed_over, single_queue
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

TIMES = st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1)), min_size=1, max_size=30)


# -- the ideal


def test_who_is_free_takes_the_next() -> None:
    """Behind a long request of one worker everything goes to the other, one after another."""
    arrivals, durations = [0.0, 0.1, 0.2, 0.3], [5.0, 1.0, 1.0, 1.0]

    assert single_queue(arrivals, durations, workers=2, batch_size=1) == pytest.approx([5.0, 1.0, 1.9, 2.8])


def test_a_batch_lasts_as_long_as_its_longest() -> None:
    """A worker takes the oldest that are there, at once, and no more than a batch; its way comes on top."""
    arrivals, durations = [0.0, 0.1, 0.2, 0.3], [1.0, 0.1, 2.0, 0.1]

    assert single_queue(arrivals, durations, workers=1, batch_size=2) == pytest.approx([1.0, 2.9, 2.8, 2.8])
    assert single_queue([0.0], [1.0], workers=1, batch_size=2, way=0.5) == [1.5]


@given(TIMES, st.integers(1, 4))
def test_a_single_queue_follows_its_recursion(requests: list[tuple[float, float]], workers: int) -> None:
    """Without batches it is the queue of Kiefer and Wolfowitz, which knows only the workers' backlogs."""
    arrivals = sorted(arrival for arrival, _ in requests)
    durations = [duration for _, duration in requests]
    backlogs, before, expected = [0.0] * workers, 0.0, []
    for arrival, duration in zip(arrivals, durations, strict=True):
        backlogs = sorted(max(0.0, backlog - (arrival - before)) for backlog in backlogs)
        expected.append(backlogs[0] + duration)
        backlogs[0] += duration
        before = arrival

    assert single_queue(arrivals, durations, workers, batch_size=1) == pytest.approx(expected)


# -- what is held up


def test_waiting_beside_an_idle_worker_is_counted() -> None:
    """A request that is begun at 5 by a busy worker while another had nothing from 1 on was held up for 4."""
    slow, quick, late = Served(0.0, 1, 0.0, 5.0), Served(0.0, 2, 0.0, 1.0), Served(0.5, 1, 5.0, 6.0)

    assert passed_over([slow, quick, late], workers=2) == [0.0, 0.0, 4.0]
    assert passed_over([slow, late], workers=2) == [0.0, 4.5]
    assert passed_over([slow, late], workers=1) == [0.0, 0.0]
    assert idle_before([slow, quick, late]) == [0.0, 0.0, 0.0]


def test_what_waits_in_the_queue_is_not_held_up() -> None:
    """Another worker is idle until it gets what was sent before: that is the way of that request only."""
    slow, quick = Served(0.0, 1, 0.0, 5.0), Served(0.0, 2, 0.0, 1.0)
    older, younger = Served(0.4, 2, 3.0, 9.0), Served(0.5, 1, 5.0, 6.0)

    assert passed_over([slow, quick, older, younger], workers=2) == [0.0, 0.0, 0.0, 0.0]
    assert idle_before([slow, quick, older, younger]) == [0.0, 0.0, 2.0, 0.0]


@given(TIMES, st.integers(1, 3))
def test_a_single_queue_holds_up_nothing(requests: list[tuple[float, float]], workers: int) -> None:
    """Whatever comes, a queue from which whoever is free takes the oldest passes over nothing."""
    arrivals = sorted({arrival for arrival, _ in requests})
    free, served = [0.0] * workers, []
    for arrival, (_, duration) in zip(arrivals, requests, strict=False):
        worker = free.index(min(free))
        began = max(free[worker], arrival)
        free[worker] = began + duration
        served.append(Served(arrival, worker, began, free[worker]))

    assert max(passed_over(served, workers)) == 0.0


# -- durations, rates, marks


def test_durations_are_as_they_are_called() -> None:
    """One in a hundred of the bimodal ones is long, half of the lognormal ones are below the median."""
    two, many = bimodal(1000, Random(1)), lognormal(20_000, Random(1))

    assert (two.count(LONG), two.count(SHORT)) == (10, 990)
    assert statistics.median(many) == pytest.approx(SHORT, rel=0.03)
    assert bimodal(3, Random(1)).count(LONG) == 1


def test_a_load_is_a_share_of_full_batches() -> None:
    """With one row each the mean of the durations counts; more rows are slower together, but not so much."""
    alone, eight = Case(2, 1, "bimodal", 0.5), Case(2, 8, "bimodal", 0.5)

    assert alone.rate == pytest.approx(0.5 * 2 / 0.0398, rel=0.01)
    assert alone.rate < eight.rate < 8 * alone.rate


@pytest.mark.parametrize(("p99", "held", "reached"), [(11.0, 0, 5), (11.1, 0, 4), (11.0, 1, 4)])
def test_the_worst_row_makes_the_mark(p99: float, held: int, reached: int) -> None:
    """At most a tenth above the ideal, and nothing held up; what another server does makes none."""
    ideal = Latencies(10.0, 10.0, 10.0)
    bad = Latencies(99.0, 99.0, 99.0)
    rows = [
        Row(server, Case(2, 1, "bimodal", 0.3), 1, measured, ideal, ideal, count, 0.0, 0.0, 0.0)
        for server, measured, count in (
            (OURS, ideal, 0), (OURS, Latencies(10.0, p99, 10.0), held), (TORCHSERVE, bad, 9)
        )
    ]  # fmt: skip

    assert sum(mark.reached for mark in marks_of(rows)) == reached


# -- the program


def test_a_dry_run_of_mixed_starts_nothing() -> None:
    """It names the machine and what it would measure."""
    command = [sys.executable, "-m", "benchmarks", "mixed", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "- cpu: " in done.stdout
    assert done.stdout.count(" requests/s") == 24


@pytest.mark.slow
def test_short_requests_are_measured_among_slow_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each case gets a row beside its ideal; nothing fails and nothing is held up behind the long ones."""
    out = tmp_path / "mixed.json"
    short = ["--duration", "2", "--workers", "2", "--loads", "0.6", "--out", str(out)]
    status = mixed.main(short)
    said = capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]

    assert status == 0, said
    assert len(rows) == 4
    assert all(row["measured"]["p50"] > 0.9 * row["ideal"]["p50"] > 0 for row in rows)
    # Far above what a busy machine delays, far below what a long request takes.
    assert all(row["held_ms"] < 500 for row in rows if row["case"]["kind"] == "bimodal")
    assert said.lower().count("reached: ") == 5
