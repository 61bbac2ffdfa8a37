"""Curves of policies over loads, as PNG. Needs matplotlib, of the extra ``bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from modelserver.engine.simulation.figures import Figures

_PANELS = (
    ("rate", "requests/s"),
    ("device_ms", "worker ms per request"),
    ("p50_ms", "p50 ms"),
    ("p99_ms", "p99 ms"),
)


def draw(path: Path, title: str, curves: Mapping[str, Sequence[tuple[float, Figures]]]) -> None:
    """Four panels over the load; ``curves`` are (load, figures) by policy."""
    mpl.use("Agg")
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    for axes, (name, label) in zip(figure.subplots(2, 2).flat, _PANELS):  # noqa: B905 - four each
        for policy, points in curves.items():
            loads = [load for load, _ in points]
            axes.plot(loads, [getattr(figures, name) for _, figures in points], marker="o", label=policy)
        axes.set_xlabel("load")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path, dpi=110)
