"""What access log and metrics cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks import observability
from benchmarks.measure import Sample
from benchmarks.observability import SHIPPED, Point, marks, report

if TYPE_CHECKING:
    from pathlib import Path

OFF, ON = Point(1, "off"), Point(1, "on")


def taken(point: Point, rate: float, cpu_us: float, repetition: int = 0, **failures: int) -> Sample:
    return Sample(str(point), 64, repetition, rate, cpu_us=cpu_us, failures=failures)


def test_marks_are_those_of_the_server_as_shipped() -> None:
    """Each repetition is compared with the same one of the server without; a failure voids the figure."""
    samples = [
        taken(OFF, 1000, 100),
        taken(ON, 960, 106),
        taken(OFF, 2000, 50, 1),
        taken(ON, 1920, 53, 1),
    ]
    found = marks([OFF, ON], samples)

    assert [mark.value for mark in found] == [pytest.approx(0.96), pytest.approx(1.06)]
    assert [mark.reached for mark in found] == [True, False]
    text = report([OFF, ON], samples)
    assert text.count("\nreached: ") == text.count("NOT REACHED: ") == 1
    broken = [*samples, taken(OFF, 1, 1, 2, read=1), taken(ON, 1, 1, 2)]
    assert [mark.value for mark in marks([OFF, ON], broken)] == [None, None]


def test_dry_run_names_the_points(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started."""
    assert observability.main(["--dry-run"]) == 0
    few = capsys.readouterr().out
    assert observability.main(["--all", "--batches", "8", "--dry-run"]) == 0
    many = capsys.readouterr().out
    assert observability.main(["--tracing", "--dry-run"]) == 0
    traced = capsys.readouterr().out

    assert few.count("\nbatch ") == 6
    assert "batch 8, log mode (metrics_mode=log)" in many
    assert "traced" not in few + many
    assert traced.count("\nbatch ") == 4


def test_traces_are_compared_with_the_server_as_shipped() -> None:
    """By requests per second."""
    points = [ON, Point(1, "traced")]
    samples = [taken(ON, 1000, 100), taken(points[1], 940, 110)]
    (mark,) = marks(points, samples)

    assert (mark.value, mark.reached) == (pytest.approx(0.94), False)
    assert "| to on |" in report(points, samples)


@pytest.mark.slow
def test_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One server notes requests and the other does not; the figures are written, none is void."""
    out = tmp_path / "out.json"
    short = ["--duration", "0.2", "--reps", "1", "--warmup", "0.1", "--client", "asyncio"]

    assert observability.main([*short, "--batches", "1", "--connections", "2", "--out", str(out)]) == 0
    said = json.loads(out.read_text())
    assert [figure["subject"] for figure in said["figures"]] == [f"batch 1, {way}" for way in SHIPPED]
    assert len(said["marks"]) == 2
    assert capsys.readouterr().out.lower().count("reached: batch 1: ") == 2
