"""The ways to compute a network, run shortly; how fast anything is does not matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks import optimizations
from benchmarks.servers import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_a_dry_run_says_what_would_be_measured() -> None:
    """It names the machine and the ways, and computes nothing."""
    command = [sys.executable, "-m", "benchmarks.optimizations", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "- cpu: " in done.stdout
    assert all(way in done.stdout for way in optimizations.WAYS)


@pytest.mark.slow
def test_all_ways_but_compiled_ones_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that the processor can do has a rate; those in float32 are within 1e-4 of the plain network."""
    monkeypatch.setenv("MODELSERVER_CACHE", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "ways.json"
    more = ["--arch", "resnet18", "--batches", "2", "--reps", "1", "--threads", "1", "--out", str(out)]

    assert optimizations.main(["--no-compile", *more]) == 0
    figures = json.loads(out.read_text())["figures"]
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert [figure["way"] for figure in figures] == [
        way
        for way in optimizations.WAYS
        if way not in optimizations.COMPILED and (has_bf16 or "bf16" not in way)
    ]
    assert all(figure["rate"] > 0 for figure in figures)
    assert all(figure["to_matrix_product"] > 0 for figure in figures)
    exact = [figure for figure in figures if "bf16" not in figure["way"] and "int8" not in figure["way"]]
    assert all(figure["difference"] < 1e-4 for figure in exact)
    printed = capsys.readouterr().out
    assert "| optimize: auto " in printed
    assert ("matrix product, bf16: " in printed) is has_bf16
