"""The benchmark programs, run shortly; how fast anything is does not matter here."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import batching, frontend, resnet152
from benchmarks.archives import photograph
from benchmarks.lone import Lone, handler_ms, worst_added
from benchmarks.servers import ROOT
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Measured = Callable[..., tuple[dict[str, Any], str]]

PROGRAMS = ("frontend", "resnet152", "batching")
SHORT = ["--duration", "0.3", "--reps", "1", "--warmup", "0.2", "--client", "asyncio"]


@pytest.fixture
def measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Measured:
    """Runs a program shortly to its good end; returns its JSON and what it printed."""

    def run(main: Callable[[list[str]], int], *arguments: str) -> tuple[dict[str, Any], str]:
        out = tmp_path / "measured.json"
        status = main([*SHORT, *arguments, "--out", str(out)])
        said = capsys.readouterr()
        assert status == 0, said.out + said.err
        return json.loads(out.read_text()), said.out

    return run


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_dry_run_says_what_would_be_measured(program: str) -> None:
    """It names the machine and starts no server."""
    command = [sys.executable, "-m", f"benchmarks.{program}", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "- cpu: " in done.stdout
    assert "interleaved" in done.stdout


@pytest.mark.slow
def test_the_front_end_is_compared_with_an_echo(measured: Measured) -> None:
    """Echo, batch 1 and both policies of batch 32 are measured, nothing is void, marks are told."""
    quick = ("--connections", "32", "--lone-requests", "5", "--idle-seconds", "0.2")
    document, said = measured(frontend.main, *quick)

    assert len(document["figures"]) == 4
    assert all(not figure["failures"] and figure["rate"] > 0 for figure in document["figures"])
    assert all(each["to_echo"] > 0 for each in document["ratios"])
    assert [each["failures"] for each in document["lone"]] == [0] * 4
    assert len(document["marks"]) == 5
    assert said.count("reached") + said.count("REACHED") == 5


@pytest.mark.slow
def test_a_resnet_is_compared_with_the_pytorch_loop(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of loop and the server are measured, and related to each other."""
    monkeypatch.delitem(resnet152.POLICIES, "window 50 ms")  # one is enough to see, and quicker
    small = ("--arch", "resnet18", "--batch", "2", "--connections", "4", "--threads", "1")
    document, _ = measured(resnet152.main, *small)

    assert [each["subject"] for each in document["figures"]] == ["loop, model", "loop, decode", "adaptive"]
    assert [each["subject"] for each in document["ratios"]] == ["adaptive"]
    assert all(each["to_loop_decode"] > 0 and each["to_loop_model"] > 0 for each in document["ratios"])
    assert len(document["marks"]) == 1


@pytest.mark.slow
def test_batches_are_compared_with_single_pictures(measured: Measured) -> None:
    """The digit model is measured at each batch size, with twice as many connections."""
    document, said = measured(batching.main, "--models", "digits", "--batches", "1,4", "--threads", "1")
    (model,) = document["models"]

    assert [row["batch"] for row in model["rows"]] == [1, 4]
    assert [row["figure"]["connections"] for row in model["rows"]] == [2, 8]
    assert all(row["gain"] > 0 for row in model["rows"])
    assert "| batch size |" in said


def test_a_model_that_cannot_be_served_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program ends with status 1 and the server's reason."""
    broken = tmp_path / "broken.mar"
    broken.write_bytes(b"no archive")
    monkeypatch.setattr(batching, "DIGIT_ARCHIVE", broken)

    assert batching.main([*SHORT, "--models", "digits"]) == 1
    assert "broken.mar" in capsys.readouterr().err


def test_the_picture_is_like_a_photograph() -> None:
    """It is a JPEG of about 110 kB, the same each time."""
    picture = photograph()

    assert 90_000 < len(picture) <= 110_000
    assert Image.open(io.BytesIO(picture)).size == (720, 720)
    assert photograph() == picture


def test_the_handlers_time_is_read_from_the_header() -> None:
    """server-timing names it; without it there is no figure."""
    assert handler_ms("queue;dur=0.100, inference;dur=5.125") == 5.125
    with pytest.raises(ValueError, match="inference"):
        handler_ms(None)


def test_the_worst_lone_figure_counts() -> None:
    """The largest added time is the one for the mark; a failure voids it."""
    fast, slow = Lone("a", 0, 2.0, 3.0, 1.5, 0), Lone("b", 0, 7.0, 9.0, 5.0, 0)

    assert worst_added([fast, slow]) == 2.0
    assert worst_added([fast, Lone("c", 0, 2.0, 3.0, 1.5, failures=1)]) is None
    assert worst_added([]) is None
