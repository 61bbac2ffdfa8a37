"""Starting the server in the background: the command returns when it listens, or says why it does not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from modelserver.settings.key import TORCHSERVE
from modelserver.settings.sources import STARTED_AS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# Scripts wait for this line on standard output (reference 1).
STARTED_LINE = "Model server started."
JAVA_CLASS = "org.pytorch.serve.ModelServer"

# What the serving process writes to the command, a line each.
_STARTED = "started"
_STARTED_IN_PART = "started in part"
_FAILED = "failed "
_PROGRESS = "progress "


class Readiness:
    """The serving process's way to tell the waiting command how the start went; without one, it just says so.

    Args:
        descriptor: of the pipe to the command, or None in the foreground.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            # Workers must not hold it open: the command waits for its end.
            os.set_inheritable(descriptor, False)

    def progress(self, text: str) -> None:
        """Tells what takes its time; shown if the command runs on a terminal."""
        if self._descriptor is not None:
            self._write(self._descriptor, _PROGRESS + text)

    def started(self, loaded: bool = True) -> None:
        """The listeners accept connections. From now on nothing is tied to the terminal any more.

        ``loaded``: no model is known to have failed.
        """
        if self._descriptor is None:
            print(STARTED_LINE, flush=True)
        else:
            self._end(_STARTED if loaded else _STARTED_IN_PART)
            detach_output()

    def failed(self, reason: str) -> int:
        """The start failed; returns the exit status."""
        if self._descriptor is None:
            print(reason, flush=True)
        else:
            self._end(_FAILED + reason)
        return 1

    def _end(self, text: str) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._write(descriptor, text)
            os.close(descriptor)

    @staticmethod
    def _write(descriptor: int, text: str) -> None:
        # The command may be gone, interrupted by its user: the server does not need it.
        with contextlib.suppress(OSError):
            os.write(descriptor, " ".join(text.splitlines()).encode() + b"\n")


def detach_output() -> None:
    """Points standard output and error at nothing: whoever reads the command's output sees its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def start_detached(arguments: Sequence[str], *, wait: bool = False) -> int:
    """Starts this command again in a session of its own; returns the exit status once it is known.

    ``wait``: a model that has not loaded is a failure, though the server lives on.
    """
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter with the user's own arguments
            [sys.executable, "-m", "modelserver", *arguments, *known_as(), "--ready-fd", str(writing)],
            stdin=subprocess.DEVNULL,
            pass_fds=[writing],
            start_new_session=True,
        )
    finally:
        os.close(writing)
    try:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            outcome = follow(lines)
    except KeyboardInterrupt:
        process.terminate()
        print("Interrupted, the server was not started.", flush=True)
        return 130
    if outcome in (_STARTED, _STARTED_IN_PART):
        # The server lives on: this process must not wait for it.
        process.returncode = 0
        print(STARTED_LINE, flush=True)
        return int(wait and outcome == _STARTED_IN_PART)
    code = process.wait()
    if outcome is None:
        outcome = f"modelserver ended with status {code} before it listened."
    print(outcome.removeprefix(_FAILED), flush=True)
    return code or 1


def known_as() -> list[str]:
    """What marks the server started as ``torchserve`` for programs that look for TorchServe's process.

    SageMaker's toolkit waits for the one process that has the name of TorchServe's Java class in its command.
    """
    return ["--known-as", JAVA_CLASS] if os.environ.get(STARTED_AS) == TORCHSERVE else []


def follow(lines: Iterable[str]) -> str | None:
    """Shows the progress on a terminal; returns the last line that is none, or None without such a line."""
    outcome = None
    with progress_display() as show:
        for line in lines:
            text = line.rstrip("\n")
            if text.startswith(_PROGRESS):
                show(text.removeprefix(_PROGRESS))
            else:
                outcome = text
    return outcome


@contextlib.contextmanager
def progress_display() -> Iterator[Callable[[str], None]]:
    """Yields what shows a text beside a spinner; on anything but a terminal it shows nothing."""
    if not sys.stdout.isatty():
        yield lambda _: None
        return
    # Imported for the eyes only: other uses of the command start without it.
    from rich.console import Console  # noqa: PLC0415

    with Console(stderr=True).status("Starting") as status:
        yield status.update
