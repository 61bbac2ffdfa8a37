"""The benchmark of the first answer; how fast it is does not matter here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks import first_answer
from benchmarks.first_answer import IMPORT, WITH, WITHOUT, Taken, marks

if TYPE_CHECKING:
    from pathlib import Path


def test_a_dry_run_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what would be measured."""
    assert first_answer.main(["--dry-run"]) == 0
    assert "interleaved: serve, without torch, serve, with torch, import torch" in capsys.readouterr().out


def test_marks() -> None:
    """Torch is compared within each repetition; what was not measured is not reached."""
    taken = [Taken(WITHOUT, [0.9, 2.0, 0.8]), Taken(WITH, [2.2, 9.0, 3.0]), Taken(IMPORT, [2.0, 3.0, 3.0])]
    without, with_torch = marks(taken)

    assert (without.value, without.reached) == (0.9, True)
    assert with_torch.value == pytest.approx(1.1)
    assert [mark.value for mark in marks(taken[:1])] == [0.9, None]


@pytest.mark.slow
def test_a_script_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each repetition has its time."""
    out = tmp_path / "out.json"

    assert first_answer.main(["--reps", "1", "--without-torch", "--out", str(out)]) == 0
    assert len(json.loads(out.read_text())["taken"][0]["seconds"]) == 1
    assert "| serve, without torch |" in capsys.readouterr().out


@pytest.mark.slow
def test_what_does_not_serve_is_told(tmp_path: Path) -> None:
    """A script that fails ends the measurement with its output."""
    script = tmp_path / "broken.py"
    script.write_text("raise KeyError('gone')\n")

    with pytest.raises(first_answer.BenchmarkError, match="KeyError: 'gone'"):
        first_answer.first_answer(script)
