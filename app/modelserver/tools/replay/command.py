"""``modelserver replay``: sends recorded requests again and compares."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from modelserver.errors import ConfigError
from modelserver.ext.console.simulation.figures import percentile
from modelserver.ext.grpc.framing import GRPC
from modelserver.ext.recording.entries import Call, timing_of
from modelserver.ext.recording.file import Recording, read
from modelserver.ext.rollout.agreement import Tolerance
from modelserver.models.settings.load import load_settings
from modelserver.surface.auth.scopes import Scope
from modelserver.tools.commands import exit_status
from modelserver.tools.http_client import TimedResponse
from modelserver.tools.replay import sender
from modelserver.tools.replay.comparison import difference
from modelserver.tools.replay.sender import Destination
from modelserver.tools.running_server import RunningServer, token
from modelserver.tools.tune.report import page as html_page
from modelserver.tools.tune.report import table
from modelserver.tools.tune.svg import Chart, Series, draw

# What a replay has found: figures side by side, as text and as a page with a plot.

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
        """Computes the server's figures in the recording."""
        times = [(call.took / 1e6, *call.timing) for call in calls if 0 < call.status < _FAILED]
        seconds = (max(call.at + call.took for call in calls) - calls[0].at) / 1e9 if calls else 0.0
        return cls._of("recorded", seconds, times, (call.status or "client left" for call in calls))

    @classmethod
    def replayed(cls, answers: Sequence[TimedResponse]) -> ReplaySide:
        """Computes the client's figures in the replay."""
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


_MAX = "max"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OF_OTHERS = ("to", "to_grpc", "speed", "connections", "timeout", "header", "token_file", "ca_file")
_OF_OWN = ("models", "model_store", "ts_config")


def main(arguments: Sequence[str]) -> int:
    """Returns 0; 1 if a request got no answer, or with ``--compare`` another one than recorded; 2 for a bad
    command line or a file that cannot be read; 130 if interrupted.
    """
    options = build_parser().parse_args(arguments)
    return exit_status(lambda: replay(options), {ConfigError: 2})


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver replay",
        description="Sends the requests of a recording again, with the gaps in which they came, and shows "
        "latencies side by side.",
    )
    add = parser.add_argument
    add("recording", metavar="FILE", type=Path, help="made by modelserver record")
    add("--to", metavar="URL", help="the inference address of a server")
    add("--to-grpc", metavar="URL", help="the same for calls over gRPC, such as http://localhost:7070")
    add(
        "--exact",
        action="store_true",
        help="send the recorded batches, one after the other, to models in workers of their own; status 1 if "
        "one of them became another batch",
    )
    add("--speed", metavar="FACTOR", default="1", help="1: with the recorded gaps, 2: with half of them, max")
    add("--compare", action="store_true", help="compare the answers; status 1 if one differs")
    add("--tolerance", metavar="SHARE", type=float, default=1e-5, help="of numbers, relative (default: 1e-5)")
    add("--plot", metavar="FILE", type=Path, help="write figures and plot as an HTML page")
    add("--connections", metavar="N", type=int, help="at most (default: 1024; 16 with --speed max)")
    add("--timeout", metavar="S", type=float, default=120.0, help="without any answer (default: 120)")
    add("--header", metavar="NAME:VALUE", action="append", default=[], help="to add to each request")
    add("--token-file", metavar="FILE", type=Path, help="a file with the inference token")
    add("--ca-file", metavar="FILE", help="certificate authorities (PEM) for an https address")
    own = parser.add_argument_group("with --exact")
    add = own.add_argument
    add("--models", nargs="+", metavar="[NAME=]ARCHIVE", help="of the recorded models")
    add("--model-store", metavar="DIR", help="where they are")
    add("--ts-config", metavar="FILE", help="a configuration file, for all other settings")
    return parser


def replay(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises ConfigError."""
    _check_flags(options)
    send = _exactly(options) if options.exact else _to_server(options)
    recording = read(options.recording)
    for line in notices(recording):
        print(line, flush=True)
    if not recording.calls:
        raise ConfigError(f"{options.recording}: there are no requests")
    calls, answers, lines, as_recorded = send(recording.calls)
    differences = None
    if options.compare:
        differences = differences_of(calls, answers, Tolerance(options.tolerance))
    then, now = ReplaySide.recorded(calls), ReplaySide.replayed(answers)
    print("\n".join([text_report(then, now, differences), *lines]), flush=True)
    if options.plot is not None:
        try:
            options.plot.write_text(page(options.recording.name, then, now, differences), "utf-8")
        except OSError as error:
            raise ConfigError(f"--plot={options.plot}: {error.strerror}") from error
    failed = not as_recorded or any(answer.fault for answer in answers)
    return 1 if failed or (differences is not None and differences.differing) else 0


class ReplayResult(NamedTuple):
    """The calls that were sent and their answers; ``lines`` tell what else there is to know, ``as_recorded``
    whether they were sent as they should be.
    """

    calls: Sequence[Call]
    answers: Sequence[TimedResponse]
    lines: Sequence[str]
    as_recorded: bool

    @classmethod
    def of(
        cls, pairs: Iterable[tuple[Call, TimedResponse]], lines: Sequence[str], *, as_recorded: bool = True
    ) -> ReplayResult:
        """The calls and answers, ordered by arrival."""
        ordered = sorted(pairs, key=lambda pair: pair[0].at)
        return cls([call for call, _ in ordered], [answer for _, answer in ordered], lines, as_recorded)


class _Protocol:
    """How requests are sent over REST, or over gRPC; ``destination`` is None if they are not."""

    def __init__(self, options: argparse.Namespace, *, over_grpc: bool) -> None:
        self._over_grpc = over_grpc
        self.flag, url = ("--to-grpc", options.to_grpc) if over_grpc else ("--to", options.to)
        self.send = sender.send_grpc if over_grpc else sender.send
        self.destination = None
        if url is not None:
            added = _headers(options.header)
            if not any(name.lower() == "authorization" for name, _ in added):
                added += _authorization(options, url)
            self.destination = Destination.of(url, added, options.ca_file, over_grpc=over_grpc)

    def takes(self, call: Call) -> bool:
        return (call.method == GRPC) == self._over_grpc


def _check_flags(options: argparse.Namespace) -> None:
    """Raises ConfigError for a flag that has no effect or no sense, or if none says where to send to."""
    if not (options.exact or options.to or options.to_grpc):
        raise ConfigError("one of --to, --to-grpc and --exact is needed")
    kind, foreign = ("--exact", _OF_OTHERS) if options.exact else ("--to", _OF_OWN)
    if not 0 <= options.tolerance < math.inf:
        raise ConfigError(f"--tolerance={options.tolerance:g}: a number of at least 0 is needed")
    default = build_parser().get_default
    for name in foreign:
        if getattr(options, name) != default(name):
            raise ConfigError(f"--{name.replace('_', '-')} has no effect with {kind}")


def _to_server(options: argparse.Namespace) -> Callable[[Sequence[Call]], ReplayResult]:
    """Sends to a running server."""
    speed = read_speed(options.speed)
    protocols = [_Protocol(options, over_grpc=over_grpc) for over_grpc in (False, True)]
    if not options.timeout > 0:
        raise ConfigError(f"--timeout={options.timeout:g}: a positive number is needed")
    if options.connections is not None and options.connections < 1:
        raise ConfigError(f"--connections={options.connections}: a positive number is needed")
    connections = options.connections or (16 if speed is None else 1024)

    async def sent(recorded: Sequence[Call]) -> ReplayResult:
        parts = [(protocol, [call for call in recorded if protocol.takes(call)]) for protocol in protocols]
        lines = [
            f"Requests that are not sent without {protocol.flag}: {len(calls)}."
            for protocol, calls in parts
            if calls and protocol.destination is None
        ]
        parts = [(protocol, calls) for protocol, calls in parts if calls and protocol.destination is not None]
        if not parts:
            raise ConfigError(lines[0])
        first = min(calls[0].at for _, calls in parts)

        async def ask(protocol: _Protocol, calls: Sequence[Call]) -> list[tuple[Call, TimedResponse]]:
            assert protocol.destination is not None  # noqa: S101 - of the others, nothing is asked
            times = None if speed is None else [(call.at - first) / 1e9 / speed for call in calls]
            answers = await protocol.send(
                protocol.destination, calls, times, connections=connections, patience=options.timeout
            )
            return list(zip(calls, answers, strict=True))

        differing = await asyncio.gather(*(ask(protocol, calls) for protocol, calls in parts))
        return ReplayResult.of([pair for pairs in differing for pair in pairs], lines)

    return lambda calls: asyncio.run(sent(calls))


def _exactly(options: argparse.Namespace) -> Callable[[Sequence[Call]], ReplayResult]:
    """Sends the recorded batches to models in workers of their own."""
    flags = {"ts_config": options.ts_config, "model_store": options.model_store}
    loaded = load_settings({**flags, "load_models": options.models}, os.environ, Path.cwd())

    def send(calls: Sequence[Call]) -> ReplayResult:
        # Imported late, as it loads large parts of the server.
        from modelserver.tools.replay.exact import replay_exactly  # noqa: PLC0415

        replayed = replay_exactly(calls, loaded)
        sent = [pair for batch in replayed.batches for pair in zip(batch.calls, batch.answers, strict=True)]
        return ReplayResult.of(sent, replayed.lines(), as_recorded=replayed.exact)

    return send


def differences_of(
    calls: Sequence[Call], answers: Sequence[TimedResponse], tolerance: Tolerance
) -> Differences:
    """Compares all answers that were recorded to their end."""
    whole = [
        (call, answer) for call, answer in zip(calls, answers, strict=True) if call.status and call.complete
    ]
    differences = ((call, difference(call, answer, tolerance)) for call, answer in whole)
    return Differences(len(whole), [(call, how) for call, how in differences if how])


def notices(recording: Recording) -> list[str]:
    """What there is to know about the recording before it is replayed."""
    lines = []
    if recording.fault:
        lines.append(f"Warning: the file ends early, {recording.fault}; what was recorded before is used.")
    elif not recording.ended:
        lines.append("Warning: the recording was not ended, its last requests may be missing.")
    if str(recording.lost):
        lines.append(f"Warning: not recorded: {recording.lost}.")
    return lines


def read_speed(text: str) -> float | None:
    """The factor; None for as fast as possible. Raises ConfigError."""
    if text == _MAX:
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise ConfigError(f"--speed={text}: a positive number or {_MAX} is needed")
    return speed


def _headers(texts: Sequence[str]) -> list[tuple[str, str]]:
    headers = []
    for text in texts:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not _NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise ConfigError(f"--header={text}: NAME:VALUE in ASCII is needed")
        headers.append((name, value))
    return headers


def _authorization(options: argparse.Namespace, url: str) -> list[tuple[str, str]]:
    """The inference token, if there is one for the server."""
    key = token(Scope.INFERENCE, options.token_file, url, RunningServer.detect())
    return [] if key is None else [("authorization", f"Bearer {key}")]
