"""Pictures of a comparison, one PNG per work, by matplotlib, an extra: ``pip install -e '.[bench]'``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.measure import Figure

WITHOUT = "no plots: matplotlib is not installed (pip install -e '.[bench]')"
_WIDTH = 9.0  # inches


def can_plot() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def plot_rates(
    path: Path, title: str, summary: Sequence[Figure], titles: Mapping[str, str], unit: str = "requests/s"
) -> None:
    """Rates and 99th percentiles, a group of bars for each number of connections; void figures are left out.

    Subjects without connections, the loops, are lines across.
    """
    connections = sorted({each.connections for each in summary if each.connections})
    subjects = list(dict.fromkeys(each.subject for each in summary if each.connections))
    figure, (rates, tails) = _axes(title)
    for index, subject in enumerate(subjects):
        mine = {each.connections: each for each in summary if each.subject == subject}
        where = [group + (index + 0.5) / (len(subjects) + 1) - 0.5 for group in range(len(connections))]
        width = 1 / (len(subjects) + 1)
        shown = titles.get(subject, subject)
        for axes, values in (
            (rates, [mine[at].rate if at in mine else None for at in connections]),
            (tails, [mine[at].p99_ms if at in mine else None for at in connections]),
        ):
            axes.bar(where, [value or 0.0 for value in values], width, align="edge", label=shown)
    loops = [each for each in summary if not each.connections and each.rate]
    for index, each in enumerate(loops):
        rates.axhline(each.rate, linestyle=":", color=f"C{index + len(subjects)}", label=each.subject)
    rates.set_ylabel(unit)
    tails.set_ylabel("p99, ms")
    tails.set_yscale("log")
    for axes in (rates, tails):
        axes.set_xticks(range(len(connections)), [str(each) for each in connections])
        axes.set_xlabel("connections")
    rates.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def plot_bars(path: Path, title: str, bars: Mapping[str, Mapping[str, float]]) -> None:
    """One panel for each measure (its name says the unit), a horizontal bar for each subject in it."""
    figure, panels = _axes(title, len(bars))
    for axes, (measure, values) in zip(panels, bars.items()):  # noqa: B905 - as many as were asked for
        names = list(values)[::-1]
        drawn = axes.barh(names, [values[name] for name in names])
        axes.bar_label(drawn, fmt="%.3g", padding=2, fontsize=7)
        axes.set_xlabel(measure)
        axes.margins(x=0.2)
    figure.savefig(path, dpi=110)


def plot_lines(
    path: Path, title: str, x: str, y: str, lines: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """Curves over a logarithmic axis, each with its points."""
    figure, (axes,) = _axes(title, 1)
    for name, points in lines.items():
        axes.plot([point[0] for point in points], [point[1] for point in points], "o-", label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def _axes(title: str, panels: int = 2) -> tuple[Any, Any]:
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - an extra

    canvas = Canvas(figsize=(_WIDTH, 4.2), layout="constrained")
    canvas.suptitle(title)
    return canvas, canvas.subplots(1, panels, squeeze=False)[0]
