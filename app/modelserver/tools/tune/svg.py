"""Curves as inline SVG: a few lines, points and labels."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH, _HEIGHT = 680, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 50
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Series:
    """Points ``(x, y)`` with a name and a CSS class.

    ``labels`` are tooltips, ``marks`` are shown beside the points.
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


_TICKS = 6


def ticks(largest: float) -> list[float]:
    """Round numbers from 0 to at least ``largest``."""
    if not math.isfinite(largest) or largest <= 0:
        return [0.0, 1.0]
    rough = largest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in _STEPS if s * power >= rough * (1 - 1e-9))
    return [step * index for index in range(math.ceil(largest / step - 1e-9) + 1)]


def draw(chart: Chart) -> str:
    """The chart as an ``<svg>`` element; names are escaped."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    if chart.limit is not None:
        ys.append(chart.limit * 1.05)
    drawing = _Drawing(chart.title, ticks(max(xs, default=0.0)), ticks(max(ys, default=0.0)))
    middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    drawing.text(chart.x_name, x=f"{middle_x:g}", y=_HEIGHT - 10, style="name")
    drawing.text(chart.y_name, transform=f"translate(16 {middle_y:g}) rotate(-90)", style="name")
    if chart.limit is not None:
        y = drawing.y(chart.limit)
        drawing.line(_LEFT, y, _WIDTH - _RIGHT, y, "limit")
        drawing.text(chart.limit_name, "end", x=_WIDTH - _RIGHT - 4, y=y - 5, style="limit")
    for index, series in enumerate(chart.series):
        drawing.series(series)
        y = _TOP + 14 + 18 * index
        drawing.add("circle", style=series.style, cx=_LEFT + 14, cy=y - 4, r=4)
        drawing.text(series.name, "start", x=_LEFT + 24, y=y)
    return ET.tostring(drawing.svg, "unicode")


class _Drawing:
    """An empty chart with its grid, to which more is added."""

    def __init__(self, title: str, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> None:
        label = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "aria-label": title}
        self.svg = ET.Element("svg", label)
        self._x_max, self._y_max = x_ticks[-1], y_ticks[-1]
        for value in x_ticks:
            x = self.x(value)
            self.line(x, _TOP, x, _HEIGHT - _BOTTOM, "grid")
            self.text(f"{value:g}", x=x, y=_HEIGHT - _BOTTOM + 16)
        for value in y_ticks:
            y = self.y(value)
            self.line(_LEFT, y, _WIDTH - _RIGHT, y, "grid")
            self.text(f"{value:g}", "end", x=_LEFT - 6, y=y + 4)

    def x(self, value: float) -> float:
        return _LEFT + value / self._x_max * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self._y_max * (_HEIGHT - _TOP - _BOTTOM)

    def add(self, tag: str, *, style: str = "", **attributes: object) -> ET.Element:
        texts = {name: f"{v:.1f}" if isinstance(v, float) else str(v) for name, v in attributes.items()}
        return ET.SubElement(self.svg, tag, {**({"class": style} if style else {}), **texts})

    def text(self, text: str, anchor: str = "middle", **attributes: Any) -> None:
        element = self.add("text", **attributes)
        element.set("text-anchor", anchor)
        element.text = text

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, style=style)

    def series(self, series: Series) -> None:
        places = [(self.x(x), self.y(y)) for x, y in series.points if math.isfinite(x) and math.isfinite(y)]
        if series.line and len(places) > 1:
            self.add("polyline", style=series.style, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places))
        for index, (x, y) in enumerate(places):
            point = self.add("circle", style=series.style, cx=x, cy=y, r=4)
            label = series.labels[index] if index < len(series.labels) else series.name
            ET.SubElement(point, "title").text = label
            if index < len(series.marks):
                self.text(series.marks[index], x=x, y=y + 16, style="mark")
