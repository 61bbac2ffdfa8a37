"""The picture of a recorded trace in docs/tracing.md.

``python -m docs.trace_picture > docs/pictures/trace.svg`` makes it.

``pictures/trace.json`` has the spans of one request as a collector received them: name, id, parent's id, and
milliseconds from the begin of the first to begin and end.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

RECORDED = Path(__file__).parent / "pictures" / "trace.json"

_LEFT, _WIDTH, _ROW = 300, 560, 26
_COLOURS = {"batch": "#7c5cbf", "handler": "#2f7f6f", "queue": "#c08a2b", "answer": "#4a7fb5"}
_TEXT, _LINE, _SERVER, _REST = "#7a7f87", "#9aa0a8", "#4a7fb5", "#57a08f"


@dataclass(frozen=True, slots=True)
class Span:
    """A row of the picture; ``depth`` is how many spans are above it."""

    name: str
    depth: int
    start: float
    end: float


def rows(recorded: list[dict[str, str | float]]) -> list[Span]:
    """The spans in the order of a tree; children of the same parent are sorted by their start."""
    ids = {each["id"] for each in recorded}

    def below(parent: object, depth: int) -> list[Span]:
        children = [each for each in recorded if each["parent"] == parent]
        if depth == 0:
            children = [each for each in recorded if each["parent"] not in ids]
        spans = []
        for each in sorted(children, key=lambda child: float(child["start"])):
            spans.append(Span(str(each["name"]), depth, float(each["start"]), float(each["end"])))
            spans += below(each["id"], depth + 1)
        return spans

    return below(None, 0)


def picture(spans: list[Span]) -> str:
    """The SVG; readable on light and dark pages."""
    longest = max(span.end for span in spans)
    height = _ROW * len(spans) + 48
    box, font = f"0 0 {_LEFT + _WIDTH + 80} {height}", 'font-family="sans-serif" font-size="13"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" {font} fill="{_TEXT}">']
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if longest / step <= 8)
    for tick in range(0, int(longest) + 1, step):
        x = _LEFT + tick / longest * _WIDTH
        parts += [
            f'<path d="M{x:.1f} 10V{height - 28}" stroke="{_LINE}" stroke-width=".5"/>',
            f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{tick} ms</text>',
        ]
    for number, span in enumerate(spans):
        y = 14 + number * _ROW
        x, width = _LEFT + span.start / longest * _WIDTH, (span.end - span.start) / longest * _WIDTH
        colour = _COLOURS.get(span.name, _REST if span.depth else _SERVER)
        parts += [
            f'<text x="{8 + 14 * span.depth}" y="{y + 13}">{escape(span.name)}</text>',
            f'<rect x="{x:.1f}" y="{y}" width="{max(1.5, width):.1f}" height="17" rx="2" fill="{colour}"/>',
            f'<text x="{x + max(1.5, width) + 5:.1f}" y="{y + 13}">{span.end - span.start:.1f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(picture(rows(json.loads(RECORDED.read_text()))))
