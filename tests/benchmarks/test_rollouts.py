"""What recordings, weights and shadows cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks import rollouts
from benchmarks.measure import Sample
from benchmarks.rollouts import AGAIN, OFF, ON, PAIRS, marks, report

if TYPE_CHECKING:
    from pathlib import Path

RECORDING = PAIRS[0]


def taken(way: str, rate: float, cpu_us: float, repetition: int = 0) -> Sample:
    return Sample(f"{RECORDING}: {way}", 32, repetition, rate, cpu_us=cpu_us)


def test_marks_are_ratios_within_a_repetition() -> None:
    """What changes between repetitions does not count."""
    samples = [
        *(taken(OFF, 1000, 100), taken(AGAIN, 1000, 100), taken(ON, 980, 104)),
        *(taken(OFF, 2000, 50, 1), taken(AGAIN, 2000, 50, 1), taken(ON, 1960, 52, 1)),
    ]
    found = marks([RECORDING], samples)
    text = report([RECORDING], samples)

    assert [mark.value for mark in found] == [pytest.approx(0.98), pytest.approx(1.04)]
    assert [mark.reached for mark in found] == [True, False]
    assert text.count("\nreached: ") == text.count("NOT REACHED: ") == 1


def test_dry_run_names_the_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started."""
    assert rollouts.main(["--dry-run"]) == 0
    every = capsys.readouterr().out
    assert rollouts.main(["--only", "shadow", "--dry-run"]) == 0
    one = capsys.readouterr().out

    assert every.count(" connections") == len(PAIRS)
    assert "weights, batch32" in every
    assert "weights" not in one.partition("interleaved")[2]


@pytest.mark.slow
def test_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is turned on and off again; the figures are written, none is void."""
    out = tmp_path / "out.json"
    short = ["--duration", "0.2", "--reps", "1", "--warmup", "0.1", "--client", "asyncio"]

    assert rollouts.main([*short, "--out", str(out)]) == 0
    said = json.loads(out.read_text())
    assert len(said["figures"]) == 3 * len(PAIRS)
    assert len(said["marks"]) == 10
    assert capsys.readouterr().out.lower().count("reached: ") == 10
