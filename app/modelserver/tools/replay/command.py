"""``modelserver replay``: sends recorded requests again and compares."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from modelserver.errors import ConfigError
from modelserver.ext.recording.file import Recording, read
from modelserver.ext.rollout.agreement import Tolerance
from modelserver.models.settings.load import load_settings
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.watching import GRPC
from modelserver.tools.commands import exit_status
from modelserver.tools.replay import sender
from modelserver.tools.replay.comparison import difference
from modelserver.tools.replay.report import Differences, ReplaySide, page, text_report
from modelserver.tools.replay.sender import Destination
from modelserver.tools.running_server import RunningServer, token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from modelserver.ext.recording.entries import Call
    from modelserver.tools.http_client import TimedResponse

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
    """How requests are sent over REST, or over gRPC; ``place`` is None if they are not."""

    def __init__(self, options: argparse.Namespace, *, over_grpc: bool) -> None:
        self._over_grpc = over_grpc
        self.flag, url = ("--to-grpc", options.to_grpc) if over_grpc else ("--to", options.to)
        self.send = sender.send_grpc if over_grpc else sender.send
        self.destination = None
        if url is not None:
            destination = Destination.of_grpc if over_grpc else Destination.of
            added = _headers(options.header)
            if not any(name.lower() == "authorization" for name, _ in added):
                added += _authorization(options, url)
            self.destination = destination(url, added, options.ca_file)

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
    flags = {
        "ts_config": options.ts_config,
        "model_store": options.model_store,
        "load_models": options.models,
    }
    loaded = load_settings(flags, os.environ, Path.cwd())

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
