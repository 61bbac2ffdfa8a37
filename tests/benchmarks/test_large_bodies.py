"""What shared memory gives to large bodies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks import large_bodies
from benchmarks.large_bodies import Point, report
from benchmarks.measure import Sample, cpu_ratio, named
from benchmarks.wire import Cost, lower_quartile

if TYPE_CHECKING:
    from pathlib import Path

SOCKET, MEMORY = Point("noop", 5_000, "socket"), Point("noop", 5_000, "memory")


def taken(point: Point, rate: float, cpu_us: float, repetition: int = 0, **failures: int) -> Sample:
    return Sample(str(point), 4, repetition, rate, cpu_us=cpu_us, failures=failures)


def test_ways_are_compared_within_repetitions() -> None:
    """Ratios above 1 speak for the memory; a failure voids them."""
    samples = [
        taken(SOCKET, 100, 30),
        taken(MEMORY, 200, 10),
        taken(SOCKET, 10, 40, 1),
        taken(MEMORY, 15, 10, 1),
    ]

    assert cpu_ratio(samples, named(SOCKET), named(MEMORY)) == pytest.approx(3.5)
    assert "| 5,000 |               55.0 |    108 |  1.75 |" in report("noop", [5_000], samples)
    broken = [*samples, taken(SOCKET, 1, 1, 2, read=1), taken(MEMORY, 1, 1, 2)]
    assert cpu_ratio(broken, named(SOCKET), named(MEMORY)) is None


def test_dry_run_names_the_points(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started."""
    assert large_bodies.main(["--sizes", "1000,7000", "--dry-run"]) == 0

    printed = capsys.readouterr().out
    assert "7,000 bytes, answered with the body, by memory" in printed
    assert printed.count("by socket") == 4


def test_between_server_and_worker(capsys: pytest.CaptureFixture[str]) -> None:
    """Both ways are measured for both handlers, and compared."""
    assert large_bodies.main(["--sizes", "1000,300000", "--turns", "2", "--no-http"]) == 0

    printed = capsys.readouterr().out
    assert [printed.count(f"| {size} ") for size in ("1,000", "300,000")] == [2, 2]


def test_quartile_is_the_lower_one() -> None:
    """Of each figure by itself, so that what disturbed some turns does not count."""
    costs = [Cost(seconds, cpu) for seconds, cpu in ((9, 1), (1, 9), (5, 5), (3, 3), (8, 8))]

    assert lower_quartile(costs) == Cost(3, 3)


@pytest.mark.slow
def test_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both servers serve both models; the figures are written, none is void."""
    out = tmp_path / "out.json"
    given = [
        "--sizes",
        "300000",
        "--duration",
        "0.2",
        "--reps",
        "1",
        "--warmup",
        "0.1",
        "--client",
        "asyncio",
    ]

    assert large_bodies.main([*given, "--connections", "2", "--turns", "2", "--out", str(out)]) == 0
    said = json.loads(out.read_text())
    assert (len(said["samples"]), len(said["wire"])) == (4, 2)
    assert capsys.readouterr().out.count("| 300,000 |") == 4
