"""``modelserver record``: writes the traffic of a running server into a file."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import msgspec

from modelserver.errors import BadRequest, ConfigError
from modelserver.ext.recording.entries import Ended, Frames, Lost, pack, unpack_others
from modelserver.ext.recording.file import Writer
from modelserver.ext.recording.recorder import RecordingOptions
from modelserver.tools.commands import counted, exit_status, message_of, termination_is_interruption
from modelserver.tools.running_server import add_flags, client_of, management

_PATH = "/recording"


class RecordingError(Exception):
    """The recording ended early; says why."""


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if the recording ended as asked, 1 if it was cut short, 2 for a bad command line."""
    options = build_parser().parse_args(arguments)
    named = (FileExistsError, IsADirectoryError, PermissionError)
    failures = dict.fromkeys((ConfigError, BadRequest, httpx.InvalidURL, *named), 2)
    return exit_status(lambda: record(options), {**failures, RecordingError: 1, OSError: 1})


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver record",
        description="Writes requests to a running server, and its answers, into a file, which modelserver "
        "replay can send again. The server needs allow_recording=true. Ctrl-C ends the recording.",
    )
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="*", help="models, or workflows, to record (default: all)")
    add("--out", metavar="FILE", type=Path, required=True, help="a new file, such as traffic.msr")
    add("--force", action="store_true", help="overwrite the file")
    add("--seconds", metavar="N", type=float, help="how long (default: until Ctrl-C)")
    add("--requests", metavar="N", type=int, help="how many requests")
    add("--sample", metavar="SHARE", type=float, default=1.0, help="the share of requests (default: 1)")
    add("--headers", metavar="NAMES", default="", help="more request headers to keep, separated by commas")
    add_flags(parser)
    return parser


def record(options: argparse.Namespace) -> int:
    """Records until the server or Ctrl-C ends it. Raises as :func:`main` handles it."""
    headers = [name.strip() for name in (options.headers or "").split(",") if name.strip()]
    # The options are checked as the server checks them.
    RecordingOptions(
        frozenset(options.models), tuple(headers), options.sample, options.seconds, options.requests
    )
    if not options.out.parent.is_dir():
        raise ConfigError(f"--out={options.out}: there is no folder {options.out.parent}")
    url, key = management(options)
    if options.out.exists() and not options.force:
        raise FileExistsError(f"{options.out} exists; --force overwrites it.")
    with client_of(url, key, options.ca_file) as client, termination_is_interruption():
        values = {name: getattr(options, name) for name in ("sample", "seconds", "requests")}
        bounds = {name: value for name, value in values.items() if value is not None}
        with _response(client, url, {"model": options.models, "header": headers, **bounds}) as answer:
            _check(answer)
            # Opened after the answer, so that a refusal leaves no file; unbuffered, so that nothing is lost.
            with options.out.open("wb", buffering=0) as output:
                # The mode of a device such as /dev/null is not changed.
                own = stat.S_ISREG(os.fstat(output.fileno()).st_mode)
                if own:
                    os.chmod(output.fileno(), 0o600)
                try:
                    writer = Writer(output)
                except OSError as error:
                    if own:
                        options.out.unlink()
                    raise RecordingError(f"{options.out} cannot be written: {error.strerror}.") from error
                with _ending_at_a_signal(url, key, options.ca_file):
                    return _RecordingFile(options.out, writer).take(answer)


class _RecordingFile:
    """Writes what the server sends, and tells what happens."""

    def __init__(self, path: Path, writer: Writer) -> None:
        self._path = path
        self._writer = writer
        self._calls = 0
        self._lost = Lost()
        self._ended = ""
        self._printed = time.monotonic()

    def take(self, answer: httpx.Response) -> int:
        """Until the end; returns the exit status."""
        print(f"Recording to {self._path}; Ctrl-C ends it.", flush=True)
        try:
            frames = Frames()
            for data in answer.iter_raw():
                for content in frames.feed(data):
                    self._frame(content)
        except KeyboardInterrupt:
            self._ended = "interrupted"
            self._writer.write(pack([Ended(self._ended)]))
        except OSError as error:
            reason = f"{self._path} cannot be written: {error.strerror}"
            raise RecordingError(f"{reason}. It holds {self._sum()}.") from error
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            raise RecordingError(
                f"The server is gone ({error}). {self._path} holds {self._sum()}."
            ) from error
        if not self._ended:
            raise RecordingError(f"The server is gone. {self._path} holds {self._sum()}.")
        print(f"{self._sum()} in {self._path} ({self._ended}).")
        return 0

    def _frame(self, content: bytes) -> None:
        calls, others = unpack_others(content)
        if not calls and not others:
            return
        self._writer.write(content)
        self._calls += calls
        for entry in others:
            if isinstance(entry, Lost):
                self._lost = entry
            elif isinstance(entry, Ended):
                self._ended = entry.reason
        if time.monotonic() - self._printed > 1.0 and sys.stdout.isatty():
            self._printed = time.monotonic()
            print(f"\r{self._sum()}", end="\x1b[K\r", flush=True)

    def _sum(self) -> str:
        requests = counted(self._calls, "request")
        return f"{requests}, not recorded: {self._lost}" if str(self._lost) else requests


@contextlib.contextmanager
def _ending_at_a_signal(url: str, key: str | None, ca_file: str | None) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM has the server end the recording and send the rest; the next interrupts."""
    # SIGINT is ignored in a shell's background job.
    numbers = [signal.SIGTERM, *([signal.SIGINT] if callable(signal.getsignal(signal.SIGINT)) else [])]

    def end(_number: int, _frame: FrameType | None) -> None:
        restore()
        try:
            with client_of(url, key, ca_file) as client:
                # 404: the recording has just ended by itself.
                ended = client.delete(_PATH).status_code in {200, 404}
        except httpx.HTTPError:
            ended = False
        if not ended:
            raise KeyboardInterrupt

    before = [(number, signal.signal(number, end)) for number in numbers]

    def restore() -> None:
        for number, handler in before:
            signal.signal(number, handler)

    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def _response(client: httpx.Client, url: str, parameters: dict[str, Any]) -> Iterator[httpx.Response]:
    """The answer, as it begins. Raises RecordingError if there is none."""
    request = client.build_request("POST", _PATH, params=parameters)
    try:
        answer = client.send(request, stream=True)
    except (httpx.HTTPError, UnicodeError) as error:
        raise RecordingError(f"No server answers at {url}: {error or type(error).__name__}") from error
    with contextlib.closing(answer):
        yield answer


def _check(answer: httpx.Response) -> None:
    """Raises RecordingError if the server refuses."""
    if answer.status_code == 200:
        return
    answer.read()
    message = message_of(answer.content)
    hint = ""
    if answer.status_code in (404, 405) and _PATH not in message and "odel" not in message:
        hint = " Does the server have allow_recording=true?"
    elif answer.status_code in (400, 401) and "token" in message.lower():
        hint = (
            " The management token is read from --token-file, MODELSERVER_MANAGEMENT_TOKEN or key_file.json."
        )
    raise RecordingError(f"The server refuses to be recorded ({answer.status_code}): {message}{hint}")
