"""What is read of perf_analyzer's words."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from benchmarks.perf_analyzer import Found, measure, read, report
from benchmarks.servers import BenchmarkError

if TYPE_CHECKING:
    from pathlib import Path

PRINTED = """
Request concurrency: 8
  Client:
    Throughput: 3058.5 infer/sec
    Avg latency: 2610 usec (standard deviation 300 usec)
  Server:
    Avg request latency: 1500 usec (overhead 100 usec + queue 900 usec + compute input 0 usec \
+ compute infer 480 usec + compute output 20 usec)
"""


def test_the_last_measurement_counts() -> None:
    """A run may print several."""
    assert read(PRINTED.replace("3058.5", "1") + PRINTED) == Found(3058.5, 2610, 1500, 100, 900, 480)
    with pytest.raises(BenchmarkError, match="measured nothing: error: no model"):
        read("error: no model")


def program(folder: Path, status: int) -> Path:
    """One that prints that, and its arguments."""
    made = folder / "perf_analyzer"
    (folder / "printed").write_text(PRINTED)
    made.write_text(f'#!/bin/sh\necho "$@" >>"{folder}/asked"\ncat "{folder}/printed"\nexit {status}\n')
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    return made


def test_each_protocol_with_and_without_shared_memory(tmp_path: Path) -> None:
    """A row each; what fails stops the benchmark."""
    rows = list(measure(program(tmp_path, 0), "m", {"http": 1, "grpc": 2}, 8, 0.5))
    asked = (tmp_path / "asked").read_text().splitlines()

    assert ["--shared-memory system" in line for line in asked] == [False, True, False, True]
    assert "-m m -i grpc -u 127.0.0.1:2 --concurrency-range 8" in asked[2]
    assert [row[0] for row in rows] == ["http", "http, shared memory", "grpc", "grpc, shared memory"]
    assert rows[0][1:] == ["3,058", "2,610", "1,500", "900", "480", "100"]
    assert "| grpc, shared memory |" in report(rows)
    with pytest.raises(BenchmarkError, match="--concurrency-range"):
        list(measure(program(tmp_path, 2), "m", {"http": 1}, 8, 0.5))
