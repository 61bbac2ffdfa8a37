"""``modelserver replay``: sends recorded requests again and compares."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.auth.scopes import Scope
from modelserver.errors import ConfigError
from modelserver.recording.file import Recording, read
from modelserver.replaying.comparison import Tolerance, difference
from modelserver.replaying.finding import Running, token
from modelserver.replaying.report import Differences, Side, page, text_report
from modelserver.replaying.sender import Answered, Place, Sender

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.recording.entries import Call

_MAX = "max"


def main(arguments: Sequence[str]) -> int:
    """Returns 0; 1 if a request got no answer, or with ``--compare`` another one than recorded; 2 for a bad
    command line or a file that cannot be read; 130 if interrupted.
    """
    options = build_parser().parse_args(arguments)
    try:
        return replay(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver replay",
        description="Sends the requests of a recording again, with the gaps in which they came, and shows "
        "latencies side by side.",
    )
    add = parser.add_argument
    add("recording", metavar="FILE", type=Path, help="made by modelserver record")
    add("--to", metavar="URL", required=True, help="the inference address of a server")
    add("--speed", metavar="FACTOR", default="1", help="1: with the recorded gaps, 2: with half of them, max")
    add("--compare", action="store_true", help="compare the answers; status 1 if one differs")
    add("--tolerance", metavar="SHARE", type=float, default=1e-5, help="of numbers, relative (default: 1e-5)")
    add("--plot", metavar="FILE", type=Path, help="write figures and plot as an HTML page")
    add("--connections", metavar="N", type=int, help="at most (default: 1024; 16 with --speed max)")
    add("--timeout", metavar="S", type=float, default=120.0, help="without any answer (default: 120)")
    add("--header", metavar="NAME:VALUE", action="append", default=[], help="to add to each request")
    add("--token-file", metavar="FILE", type=Path, help="a file with the inference token")
    add("--ca-file", metavar="FILE", help="certificate authorities (PEM) for an https address")
    return parser


def replay(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises ConfigError."""
    speed = read_speed(options.speed)
    place = Place.of(options.to, [*_authorization(options), *_headers(options.header)], options.ca_file)
    if not options.timeout > 0:
        raise ConfigError(f"--timeout={options.timeout:g}: a positive number is needed")
    if options.connections is not None and options.connections < 1:
        raise ConfigError(f"--connections={options.connections}: a positive number is needed")
    recording = read(options.recording)
    for line in told(recording):
        print(line, flush=True)
    calls = recording.calls
    if not calls:
        raise ConfigError(f"{options.recording}: there are no requests")
    first = calls[0].at
    times = None if speed is None else [(call.at - first) / 1e9 / speed for call in calls]
    requests = [place.request(call) for call in calls]
    sender_of = (place, options.connections or (16 if times is None else 1024), options.timeout)

    async def send() -> list[Answered]:
        return await Sender(*sender_of).send(requests, times)

    answers = asyncio.run(send())
    differences = None
    if options.compare:
        differences = differences_of(calls, answers, Tolerance(options.tolerance))
    then, now = Side.recorded(calls), Side.replayed(answers)
    print(text_report(then, now, differences), flush=True)
    if options.plot is not None:
        try:
            options.plot.write_text(page(options.recording.name, then, now, differences), "utf-8")
        except OSError as error:
            raise ConfigError(f"--plot={options.plot}: {error.strerror}") from error
    failed = any(answer.fault for answer in answers)
    return 1 if failed or (differences is not None and differences.found) else 0


def differences_of(calls: Sequence[Call], answers: Sequence[Answered], tolerance: Tolerance) -> Differences:
    """Compares all answers that were recorded to their end."""
    whole = [
        (call, answer) for call, answer in zip(calls, answers, strict=True) if call.status and call.complete
    ]
    found = ((call, difference(call, answer, tolerance)) for call, answer in whole)
    return Differences(len(whole), [(call, how) for call, how in found if how])


def told(recording: Recording) -> list[str]:
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


def _headers(given: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [text.partition(":") for text in given]
    if wrong := next(
        (text for text, pair in zip(given, pairs, strict=True) if not pair[1] or not text.isprintable()), None
    ):
        raise ConfigError(f"--header={wrong}: NAME:VALUE is needed")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _authorization(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The inference token, if there is one for the server."""
    key = token(Scope.INFERENCE, options.token_file, options.to, Running.found())
    return [] if key is None else [("authorization", f"Bearer {key}")]
