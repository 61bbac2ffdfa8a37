"""What a server costs before anybody asks; how much does not matter here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from benchmarks import footprint
from benchmarks.footprint import Memory, Start, accepts, cpu_of, judge, memory_of
from benchmarks.servers import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("start", [["-m", "benchmarks.footprint"], ["benchmarks/footprint.py"]])
def test_a_dry_run_of_the_footprint(start: list[str]) -> None:
    """Both ways of starting it say what would be measured, and start no server."""
    done = subprocess.run(
        [sys.executable, *start, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "- cpu: " in done.stdout
    assert "resnet152 with 1, 2, 4 workers" in done.stdout


def a_start(way: str, listening: float, rss: float) -> Start:
    return Start(way, 0, listening, 0.1, 1.0, 1.0, 0.1, rss, rss)


def a_memory(way: str, workers: int, pss: float) -> Memory:
    return Memory(way, 0, workers, 1, 1.0, 1.0, pss, pss)


def test_marks_of_the_footprint() -> None:
    """The medians as shipped count; the other way is for comparison."""
    starts = [a_start("auto", each, 90.0) for each in (0.5, 0.55, 9.0)] + [a_start("spawn", 9.0, 900.0)]
    memories = [a_memory("auto", 1, 800.0), a_memory("auto", 4, 1000.0), a_memory("spawn", 4, 9000.0)]
    marks = judge(starts, memories, "resnet152")

    assert [mark.value for mark in marks] == [0.55, 90.0, 1.25]
    assert all(mark.reached for mark in marks)


def test_what_is_read_of_processes() -> None:
    """Memory and processor time of this process and its children; a port that somebody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert not accepts(port)
        listening.listen()
        assert accepts(port)
    rss, pss = memory_of(os.getpid())

    assert rss >= pss > 0
    assert cpu_of(os.getpid()) > 0


@pytest.mark.slow
def test_the_footprint_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Starts, memory and marks are there, for more and more workers."""
    monkeypatch.setattr(footprint, "WAYS", ("auto",))  # one is enough to see, and quicker
    out = tmp_path / "footprint.json"
    status = footprint.main(["--reps", "1", "--arch", "resnet18", "--workers", "1,2", "--out", str(out)])
    said = capsys.readouterr().out
    document = json.loads(out.read_text())

    assert status == 0, said
    assert [start["way"] for start in document["starts"]] == ["auto"]
    assert [(each["workers"], each["added"]) for each in document["memory"]] == [(1, 1), (2, 1)]
    assert all(start["listening_s"] <= start["ready_s"] for start in document["starts"])
    assert len(document["marks"]) == 3
    assert said.count("reached: ") + said.count("REACHED: ") == 3
