"""Pictures of figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.measure import Sample, figures
from benchmarks.plots import can_plot, plot_bars, plot_lines, plot_rates
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("matplotlib", reason="an extra")


def shown(path: Path) -> tuple[int, int]:
    """The size of a PNG that holds more than one colour."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert any(low != high for low, high in picture.convert("RGB").getextrema())
        return picture.size


def test_rates_are_drawn_with_void_ones_left_out(tmp_path: Path) -> None:
    """Servers, a void figure and a loop without connections fit one picture."""
    samples = [
        Sample("a", 8, 0, 100.0, p50_ms=1.0, p99_ms=2.0),
        Sample("a", 32, 0, 200.0, p50_ms=1.0, p99_ms=3.0),
        Sample("b", 8, 0, 50.0, p50_ms=1.0, p99_ms=4.0, failures={"read": 1}),
        Sample("loop, plain", 0, 0, 300.0),
    ]
    plot_rates(tmp_path / "rates.png", "Title", figures(samples), {"a": "Server A"})

    assert min(shown(tmp_path / "rates.png")) > 300


def test_bars_have_a_panel_for_each_measure(tmp_path: Path) -> None:
    """Seconds and megabytes side by side."""
    plot_bars(tmp_path / "bars.png", "Title", {"start, s": {"a": 1.0, "b": 2.0}, "MB": {"a": 80.0}})

    assert min(shown(tmp_path / "bars.png")) > 300


def test_lines_are_drawn(tmp_path: Path) -> None:
    """One curve for each name."""
    plot_lines(tmp_path / "lines.png", "Title", "how many", "µs", {"models": [(1, 50.0), (100, 55.0)]})

    assert min(shown(tmp_path / "lines.png")) > 300


def test_it_is_known_that_pictures_can_be_drawn() -> None:
    """matplotlib is here, as this test is."""
    assert can_plot()
