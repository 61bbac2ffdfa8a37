"""The benchmark of decoding; how fast anything is does not matter here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import decoding
from PIL import Image

from modelserver_handlers.pictures.classic import Axis
from modelserver_handlers.pictures.resampling import taps

if TYPE_CHECKING:
    import pytest


def test_all_exact_ways_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run takes each way once, and all but the fast one give the same numbers."""
    assert decoding.main(["--dry-run"]) == 0

    said = capsys.readouterr().out
    assert "| torchvision's steps" in said
    assert "| fast_decode" in said
    assert "| weights of 20 new sizes" in said


def test_other_numbers_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A way that is not exact ends the program with status 1."""
    made = decoding.ways

    def spoilt(file: bytes) -> object:
        work = made(file)
        exact = work["floats written in place"]
        return work | {"floats written in place": lambda: exact() + 1e-3}

    monkeypatch.setattr(decoding, "ways", spoilt)

    assert decoding.main(["--dry-run"]) == 1
    assert "0.001" in capsys.readouterr().out


def test_medians_are_taken_per_way() -> None:
    """Each way is called once a round."""
    calls: list[str] = []
    taken = decoding.seconds_of({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)

    assert calls == ["a", "b"] * 3
    assert all(seconds >= 0 for seconds in taken.values())


def test_weights_are_made_anew_for_each_size() -> None:
    """As many figures as sizes, of which none has been seen before."""
    taps(Axis(400, 341, 58, 224), Image.Resampling.BILINEAR)
    taken = decoding.seconds_of_weights([(400, 300), (500, 375)])

    assert len(taken) == 2
    assert taps.cache_info().misses == 4
