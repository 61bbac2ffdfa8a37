"""What the subcommands of ``modelserver`` share; ``tools/__init__.py`` lists them.

Exit statuses, signals, and flags that several have.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from modelserver.errors import ConfigError

if TYPE_CHECKING:
    import argparse

_LONGEST = 2000  # characters of a message


def exit_status(
    work: Callable[[], int], failures: Mapping[type[Exception], int], interrupted: str = "Interrupted."
) -> int:
    """The status that ``work`` returns; if it raises one of ``failures``, that is printed, and its status
    counts. Ctrl-C is 130.
    """
    try:
        return work()
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    except tuple(failures) as error:
        print(error, file=sys.stderr)
        return next(status for kind, status in failures.items() if isinstance(error, kind))


def counted(count: int, noun: str) -> str:
    """How many there are, in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def message_of(body: bytes) -> str:
    """The message of an error's body, or the body itself, on one line."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    message = document.get("message") if isinstance(document, dict) else None
    return " ".join(str(message or body.decode("utf-8", "replace")).split())[:_LONGEST]


def check_least(options: argparse.Namespace, least: float, *names: str) -> None:
    """Raises ConfigError for a number that is given and below ``least``."""
    for name in names:
        value, flag = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is not None and not value >= least:
            raise ConfigError(f"{flag}={value:g}: a number of at least {least:g} is needed")


def read_inputs(paths: Sequence[Path], content_type: str | None) -> Iterator[tuple[Path, bytes, str]]:
    """The path, body and content type of each file of ``--input``; a folder stands for its files, by name.

    The type is ``content_type``, else guessed from the name, else empty. Raises ConfigError.
    """
    for path in paths:
        files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
        if not files:
            raise ConfigError(f"--input={path}: the folder has no files")
        for file in files:
            try:
                body = file.read_bytes()
            except OSError as error:
                raise ConfigError(f"--input={file}: {error.strerror}") from error
            yield file, body, content_type or mimetypes.guess_type(file.name)[0] or ""


@contextlib.contextmanager
def termination_is_interruption() -> Iterator[None]:
    """Makes SIGTERM end the command as Ctrl-C does, so that what it started is stopped."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not callable(signal.getsignal(signal.SIGINT)):
            raise KeyboardInterrupt  # as a shell's job in the background, it ignores that
        # A running event loop then cancels its work.
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
