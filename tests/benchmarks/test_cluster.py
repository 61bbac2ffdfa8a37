"""What workers behind the network cost; how fast anything is does not matter here."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from benchmarks import cluster, cluster_faults, cluster_many
from benchmarks.cluster import LOCAL, PAIR, RAY, ROWS, TCP, TLS, Row, Taken, best, label, marks, report
from benchmarks.cluster_faults import Happened, Loss, Sent
from benchmarks.lone import Lone
from benchmarks.measure import Sample
from benchmarks.servers import BenchmarkError

if TYPE_CHECKING:
    from pathlib import Path

ROW = ROWS["noop_b32"]


def taken(row: Row, way: str, rates: list[float], costs: list[float]) -> list[Sample]:
    """A sample for each round."""
    rounds = enumerate(zip(rates, costs))  # noqa: B905 - same lengths
    return [
        Sample(label(row, way), row.connections, number, rate, 1.0, 2.0, cost)
        for number, (rate, cost) in rounds
    ]


def lone(seconds: float, failures: int = 0) -> Lone:
    return Lone("noop", 0.0, seconds, seconds, 0.1, failures)


def verdicts(found: Taken) -> dict[str, bool]:
    return {mark.what: mark.reached for mark in marks(found)}


@pytest.mark.parametrize("options", [[], ["--rows", "1MB", "--ways", f"{TCP},{TLS}"]])
def test_dry_run(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It says which rows and ways would be measured, and starts nothing."""
    assert cluster.main(["--dry-run", *options]) == 0
    said = capsys.readouterr().out

    assert ("1 MB, batch 1: TCP, TLS" in said) is bool(options)
    assert (f"no-op, batch 32: {PAIR}, {LOCAL}, {TCP}, {TLS}" in said) is not options


def test_the_best_round_counts() -> None:
    """The highest rate and the least processor time, each of its own round."""
    found = best(taken(ROW, TCP, [100.0, 300.0, 200.0], [9.0, 8.0, 7.0]), ROW, TCP)

    assert (found.rate, found.cpu_us, found.p50_ms) == (300.0, 7.0, 1.0)


def test_a_failure_voids_all_rounds() -> None:
    """The best of rounds in which a request failed says nothing."""
    failed = Sample(label(ROW, TCP), ROW.connections, 1, 900.0, failures={"status 503": 1})
    samples = [*taken(ROW, PAIR, [100.0], [10.0]), *taken(ROW, TCP, [100.0], [10.0]), failed]

    assert best(samples, ROW, TCP).rate is None
    assert not any(verdicts(Taken(samples)).values())
    assert "status 503 x 1" in report(ROW, samples)


def test_marks_are_of_what_was_measured() -> None:
    """Each compares two ways of a row that both took part."""
    samples = [*taken(ROW, PAIR, [100.0], [10.0]), *taken(ROW, TCP, [91.0], [12.0])]
    found = verdicts(Taken(samples, {PAIR: [lone(0.5), lone(0.6)], TCP: [lone(0.59), lone(0.9)]}))

    assert found == {
        "no-op, batch 32: requests/s by TCP / socket pair": True,
        "no-op, batch 32: processor time by TCP / socket pair": False,
        "a lone request by TCP, more than by the socket pair": True,
    }
    assert marks(Taken()) == []


def test_marks_of_all() -> None:
    """With every way and row there are seven, beside Ray Serve, too."""
    samples = [
        sample
        for row in ROWS.values()
        for way, cost in ((PAIR, 10.0), (LOCAL, 10.0), (TCP, 10.5), (TLS, 20.0), (RAY, 60.0))
        for sample in taken(row, way, [1000 / cost], [cost])
    ]
    found = verdicts(Taken(samples, {PAIR: [lone(0.5)], TCP: [lone(0.7)]}))

    assert len(found) == 7
    assert [what for what, reached in found.items() if not reached] == [
        "a lone request by TCP, more than by the socket pair"
    ]
    assert "| Ray Serve " in report(ROW, samples)


def test_a_lone_request_that_failed_voids_the_figure() -> None:
    """It is neither a latency nor a difference."""
    (mark,) = marks(Taken(lone={PAIR: [lone(0.5)], TCP: [lone(0.5, failures=1)]}))

    assert mark.value is None
    assert "void" in cluster.lone_report({TCP: [lone(0.5, failures=1)]})


def test_marks_of_lost_nodes() -> None:
    """A frozen node has the lease's time to be noticed, and then as long as any to be replaced."""
    happened = Happened(6.0, Loss(0.1, 3.0), Loss(cluster_faults.LOST_AFTER + 0.5, 20.0))
    found = {mark.what: mark.reached for mark in cluster_faults.marks(happened)}

    assert found == {
        "ready on a node that has the model": False,
        "a killed node is noticed": True,
        "a killed node is replaced": True,
        "a frozen node is noticed": False,
        "a frozen node is replaced, from then": True,
    }
    assert "a node is frozen" in cluster_faults.report(happened)


def test_a_large_model_may_not_stay_in_memory() -> None:
    """The mark is of the server's growth while it sends one, where one was sent."""
    loss = Loss(0.1, 3.0)
    marks = cluster_faults.marks(Happened(1.0, loss, loss, Sent(1000, 9.0, 900.0)))

    assert [str(mark) for mark in marks if not mark.reached] == [
        "NOT REACHED: the server grows while it sends 1,000 MB <= 64 MB: 900 MB"
    ]


def test_the_peak_of_a_process() -> None:
    """It can be told from now on, in MB."""
    before = cluster_faults.peak_mb(os.getpid(), anew=True)
    held = b"x" * 50_000_000

    assert 40 < cluster_faults.peak_mb(os.getpid()) - before < 100
    del held


def test_a_worker_without_an_agent_is_no_node() -> None:
    """Only agents and their workers may be killed."""
    with pytest.raises(BenchmarkError, match="no agent"):
        cluster_faults.node_of(1, 1)


@pytest.mark.slow
def test_a_short_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ways serve, a lost node is replaced, and everything is reported."""
    monkeypatch.setattr(cluster_faults, "LOST_AFTER", 2)
    out = tmp_path / "cluster.json"
    arguments = ["--rows", "noop_b1,1MB", "--duration", "0.2", "--reps", "1", "--warmup", "0.2"]
    more = ["--client", "asyncio", "--lone-requests", "5", "--archive-mb", "3", "--out", str(out)]
    status = cluster.main([*arguments, *more])
    said = capsys.readouterr()
    written = json.loads(out.read_text())

    assert status == 0, said
    assert len(written["figures"]) == 8
    assert all(figure["rate"] > 0 for figure in written["figures"])
    assert list(written["lone"]) == [PAIR, LOCAL, TCP, TLS]
    assert written["faults"]["frozen"]["noticed"] > 1
    assert written["faults"]["sent"]["size_mb"] == 3
    assert said.out.count("reached") + said.out.count("REACHED") == 10


@pytest.mark.slow
def test_many_workers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All become ready, answer right and end; what they use is told."""
    monkeypatch.setattr(cluster_many, "SECONDS", 0.2)
    monkeypatch.setattr(cluster_many, "IDLE_SECONDS", 0.2)
    out = tmp_path / "many.json"
    assert cluster.main(["--many", "3", "--out", str(out)]) == 0
    many = json.loads(out.read_text())["many"]

    assert many["workers"] == 3
    assert many["answers"]["right"] > 0 == many["answers"]["wrong"]
    assert min(many["agent_mb"], many["worker_mb"], many["descriptors"]) > 1
    assert "3 workers at once" in capsys.readouterr().out
