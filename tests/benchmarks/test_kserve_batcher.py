"""The experiment of KServe's page on its batcher."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks import kserve_batcher
from benchmarks.kserve_batcher import DOCUMENTED, Answer, Outcome, marks_of, report

if TYPE_CHECKING:
    from pathlib import Path


def in_steps(rounds: int, step: float, clients: int = 5) -> Outcome:
    """Clients that are answered together, ``step`` seconds after each other."""
    answers = [
        Answer(client, (turn + 1) * step, step, f"batch-{turn}")
        for turn in range(rounds)
        for client in range(clients)
    ]
    return Outcome(answers, [])


def test_the_documented_figures_follow_from_the_window() -> None:
    """Twenty batches of five in steps of 526.8 ms are the page's requests, seconds and rate."""
    found = in_steps(20, 0.526805).figures

    assert found.keys() == DOCUMENTED.keys()
    assert found["requests"] == DOCUMENTED["requests"]
    assert found["seconds"] == pytest.approx(DOCUMENTED["seconds"], abs=1e-3)
    assert found["requests/s"] == pytest.approx(DOCUMENTED["requests/s"], abs=1e-3)


def test_who_shared_a_batch_is_told() -> None:
    """The report has both ways beside the page, and the ids with their clients; marks are kept or not."""
    outcomes = {"window": in_steps(20, 0.52), "adaptive": in_steps(600, 0.0167, clients=2)}
    marks = marks_of(outcomes, 5)
    said = report(outcomes, marks, 333.0)

    assert [mark.reached for mark in marks] == [True] * 4
    assert "    batch-0  clients 0, 1, 2, 3, 4\n" in said
    assert "Batches, window: 20 of 5 requests" in said
    assert "Batches, adaptive: 600 of 2 requests" in said
    assert "| requests/s | 9.4912 | 9.6154 | 120 |" in " ".join(said.split())
    lonely = {**outcomes, "window": in_steps(20, 0.52, clients=4)}
    assert [mark.reached for mark in marks_of(lonely, 5)] == [False, True, False, True]


def test_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what would be measured, and starts nothing."""
    assert kserve_batcher.main(["--dry-run"]) == 0

    printed = capsys.readouterr().out
    assert "max_batch_size=32, max_latency=500" in printed
    assert "window, adaptive: 10 s each" in printed


@pytest.mark.slow
def test_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the window all five share each batch, and wait half a second for it; adaptive is faster."""
    out = tmp_path / "out.json"

    assert kserve_batcher.main(["--duration", "0.9", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    window, adaptive = (json.loads(out.read_text())["ways"][way] for way in ("window", "adaptive"))
    assert window["batches"].keys() == {"5"}
    assert window["figures"]["fastest s"] > 0.45
    assert adaptive["figures"]["requests/s"] > window["figures"]["requests/s"]
    assert "clients 0, 1, 2, 3, 4" in said
