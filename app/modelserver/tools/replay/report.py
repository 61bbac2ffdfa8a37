"""What a replay has found: figures side by side, as text and as a page with a plot."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from modelserver.ext.console.simulation.figures import percentile
from modelserver.ext.recording.entries import timing_of
from modelserver.tools.tune.report import page as html_page
from modelserver.tools.tune.report import table
from modelserver.tools.tune.svg import Chart, Series, draw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from modelserver.ext.recording.entries import Call
    from modelserver.tools.http_client import TimedResponse

_PERCENTS: Final = (50, 90, 99)
_CURVE: Final = (*range(0, 100, 2), 99, 99.5, 99.9, 100)
_BARS: Final = (50, 75, 90, 95, 99, 100)
_WIDTH: Final = 40
_MOST_LINES: Final = 20
_FAILED: Final = 400


@dataclass(frozen=True, slots=True)
class ReplaySide:
    """One of the two: milliseconds of the answers that were no errors, ascending, and answers by status."""

    name: str
    seconds: float
    latencies: Sequence[float]
    queue: Sequence[float]
    handler: Sequence[float]
    statuses: Counter[str]

    @classmethod
    def recorded(cls, calls: Sequence[Call]) -> ReplaySide:
        """What the server measured when it was recorded."""
        times = [(call.took / 1e6, *call.timing) for call in calls if 0 < call.status < _FAILED]
        seconds = (max(call.at + call.took for call in calls) - calls[0].at) / 1e9 if calls else 0.0
        return cls._of("recorded", seconds, times, (call.status or "client left" for call in calls))

    @classmethod
    def replayed(cls, answers: Sequence[TimedResponse]) -> ReplaySide:
        """What was measured now, by the client."""
        good = [answer for answer in answers if 0 < answer.status < _FAILED]
        times = [(answer.seconds * 1e3, *timing_of(answer.lines)) for answer in good]
        seconds = max((answer.sent + answer.seconds for answer in answers), default=0.0)
        return cls._of("now", seconds, times, (answer.status or answer.fault for answer in answers))

    @classmethod
    def _of(
        cls,
        name: str,
        seconds: float,
        times: Sequence[tuple[float, float, float]],
        statuses: Iterable[int | str],
    ) -> ReplaySide:
        latencies, queue, handler = (sorted(each[column] for each in times) for column in range(3))
        return cls(name, seconds, latencies, queue, handler, Counter(map(str, statuses)))

    def rows(self) -> list[str]:
        """Its column of the table."""
        count = sum(self.statuses.values())
        rate = count / self.seconds if self.seconds > 0 else math.nan
        figures = [
            percentile(values, percent)
            for values in (self.latencies, self.queue, self.handler)
            for percent in _PERCENTS
        ]
        errors = count - len(self.latencies)
        return [str(count), str(errors), f"{self.seconds:.2f}", *(_number(f) for f in (rate, *figures))]


_NAMES: Final = (
    "requests",
    "errors",
    "seconds",
    "requests/s",
    *(f"{what} p{p} ms" for what in ("latency", "queue", "handler") for p in _PERCENTS),
)


@dataclass(frozen=True, slots=True)
class Differences:
    """The requests whose answers differ, with how: ``(call, difference)``; ``compared`` were looked at."""

    compared: int
    differing: Sequence[tuple[Call, str]]


def text_report(then: ReplaySide, now: ReplaySide, differences: Differences | None) -> str:
    """The table, the plot and the differences."""
    rows = zip(_NAMES, then.rows(), now.rows(), strict=True)
    lines = [f"{'':<16}{then.name:>12}{now.name:>12}", *(f"{n:<16}{a:>12}{b:>12}" for n, a, b in rows)]
    for side in (then, now):
        bad = {status: count for status, count in side.statuses.items() if not status.startswith(("2", "3"))}
        if bad:
            lines.append(f"errors {side.name}: {', '.join(f'{n} x {s}' for s, n in sorted(bad.items()))}")
    lines += ["", *_bars(then, now)]
    if differences is not None:
        lines += ["", *difference_lines(differences)]
    return "\n".join(lines)


def difference_lines(differences: Differences) -> list[str]:
    """A summary, and the first differences."""
    count, differing = differences.compared, differences.differing
    lines = [f"{len(differing)} of {count} answers differ."]
    lines += [
        f"  {call.at / 1e9:.3f} s {call.method.decode()} {call.target}: {how}"
        for call, how in differing[:_MOST_LINES]
    ]
    if len(differing) > _MOST_LINES:
        lines.append(f"  … and {len(differing) - _MOST_LINES} more")
    return lines


def _bars(then: ReplaySide, now: ReplaySide) -> list[str]:
    """Latencies as bars."""
    longest = max((side.latencies[-1] for side in (then, now) if side.latencies), default=0.0)
    if not longest:
        return []
    lines = [f"latency, {longest:.4g} ms wide: {then.name} ░, {now.name} █"]
    for percent in _BARS:
        name = "max" if percent == 100 else f"p{percent}"
        for side, mark in ((then, "░"), (now, "█")):
            value = percentile(side.latencies, percent)
            bar = "" if math.isnan(value) else mark * max(1, round(value / longest * _WIDTH))
            lines.append(f"{name:>4} {bar:<{_WIDTH}} {_number(value)}")
            name = ""
    return lines


def page(title: str, then: ReplaySide, now: ReplaySide, differences: Differences | None) -> str:
    """One HTML file with table and plot; all external text is escaped."""
    sides = [
        Series(side.name, [(p, percentile(side.latencies, p)) for p in _CURVE], style)
        for side, style in ((then, "one"), (now, "two"))
        if side.latencies
    ]
    chart = Chart("Latency", "percent of the answers that were as fast", "latency, ms", sides)
    rows = zip(_NAMES, then.rows(), now.rows(), strict=True)
    lines = [] if differences is None else difference_lines(differences)
    body = [
        f"<h1>Replay of {escape(title)}</h1>",
        draw(chart),
        table(("", then.name, now.name), rows),
        '<p class="soft">Recorded latencies were measured by the server, those of now by the client;',
        "queue and handler by the servers.</p>",
        f"<pre>{escape(chr(10).join(lines))}</pre>",
    ]
    return html_page(f"Replay of {title}", body)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"
