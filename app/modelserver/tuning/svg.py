"""Curves as inline SVG: a few lines, points and labels, drawn without a library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 680, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 50
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Series:
    """Points ``(x, y)`` with a name and a CSS class.

    ``labels`` are shown when one points at them, ``marks`` stand beside them.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    line: bool = True
    labels: Sequence[str] = ()
    marks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over one pair of axes, from 0; ``limit`` is a horizontal line."""

    title: str
    x_name: str
    y_name: str
    series: Sequence[Series]
    limit: float | None = None
    limit_name: str = ""


def ticks(largest: float, wanted: int = 6) -> list[float]:
    """Round numbers from 0 to at least ``largest``."""
    if not math.isfinite(largest) or largest <= 0:
        return [0.0, 1.0]
    rough = largest / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in _STEPS if s * power >= rough * (1 - 1e-9))
    return [step * index for index in range(math.ceil(largest / step - 1e-9) + 1)]


def draw(chart: Chart) -> str:
    """The chart as an ``<svg>`` element; names are escaped."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    if chart.limit is not None:
        ys.append(chart.limit * 1.05)
    x_ticks, y_ticks = ticks(max(xs, default=0.0)), ticks(max(ys, default=0.0))
    frame = _Frame(x_ticks[-1], y_ticks[-1])
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        *(frame.grid_x(value) for value in x_ticks),
        *(frame.grid_y(value) for value in y_ticks),
        (
            f'<text class="name" x="{(_LEFT + _WIDTH - _RIGHT) / 2:g}" y="{_HEIGHT - 10}" '
            f'text-anchor="middle">{escape(chart.x_name)}</text>'
        ),
        (
            f'<text class="name" transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2:g}) rotate(-90)" '
            f'text-anchor="middle">{escape(chart.y_name)}</text>'
        ),
    ]
    if chart.limit is not None:
        y = frame.y(chart.limit)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="limit" x="{_WIDTH - _RIGHT - 4}" y="{y - 5:.1f}" text-anchor="end">'
            f"{escape(chart.limit_name)}</text>"
        )
    for series in chart.series:
        parts += frame.drawn(series)
    parts += _legend(chart.series)
    return "\n".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class _Frame:
    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        return _LEFT + value / self.x_max * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.y_max * (_HEIGHT - _TOP - _BOTTOM)

    def grid_x(self, value: float) -> str:
        x = self.x(value)
        return (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
        )

    def grid_y(self, value: float) -> str:
        y = self.y(value)
        return (
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )

    def drawn(self, series: Series) -> list[str]:
        places = [(self.x(x), self.y(y)) for x, y in series.points if math.isfinite(x) and math.isfinite(y)]
        parts = []
        if series.line and len(places) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline class="{escape(series.style)}" points="{path}"/>')
        for index, (x, y) in enumerate(places):
            label = series.labels[index] if index < len(series.labels) else series.name
            parts.append(
                f'<circle class="{escape(series.style)}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                f"<title>{escape(label)}</title></circle>"
            )
            if index < len(series.marks):
                parts.append(
                    f'<text class="mark" x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">'
                    f"{escape(series.marks[index])}</text>"
                )
        return parts


def _legend(series: Sequence[Series]) -> list[str]:
    parts = []
    for index, each in enumerate(series):
        y = _TOP + 14 + 18 * index
        parts.append(f'<circle class="{escape(each.style)}" cx="{_LEFT + 14}" cy="{y - 4}" r="4"/>')
        parts.append(f'<text x="{_LEFT + 24}" y="{y}">{escape(each.name)}</text>')
    return parts
