"""Starts the server in the background: the command returns when it listens, or prints why it does not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from modelserver.models.settings.key import TORCHSERVE
from modelserver.models.settings.sources import STARTED_AS

# Scripts wait for this line on standard output (reference 1).
STARTED_LINE = "Model server started."
JAVA_CLASS = "org.pytorch.serve.ModelServer"

# Lines that the serving process writes to the command.
_STARTED = "started"
_STARTED_IN_PART = "started in part"
_FAILED = "failed "
_PROGRESS = "progress "


def print_line(text: str) -> None:
    """Prints a line and flushes standard output."""
    # In one piece, with its end: another thread may write the log there.
    print(f"{text}\n", end="", flush=True)


class Readiness:
    """Reports the progress of the start to the waiting command, or to standard output in the foreground.

    Args:
        descriptor: of the pipe to the command, None in the foreground.
        show: prints a line, in the foreground.
    """

    def __init__(self, descriptor: int | None, show: Callable[[str], None] = print_line) -> None:
        self._descriptor = descriptor
        self.print = show
        if descriptor is not None:
            # Workers must not keep it open: the command waits for its end.
            os.set_inheritable(descriptor, False)

    def progress(self, text: str) -> None:
        """Reports progress, which the command shows on a terminal."""
        if self._descriptor is not None:
            self._write(self._descriptor, _PROGRESS + text)

    def started(self, loaded: bool = True) -> None:
        """The listeners accept connections; detaches from the terminal. ``loaded``: no model has failed."""
        if self._descriptor is None:
            self.print(STARTED_LINE)
        else:
            self._end(_STARTED if loaded else _STARTED_IN_PART)
            detach_output()

    def failed(self, reason: str) -> int:
        """The start failed; returns the exit status."""
        if self._descriptor is None:
            self.print(reason)
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
        # The command may have been interrupted by its user.
        with contextlib.suppress(OSError):
            os.write(descriptor, " ".join(text.splitlines()).encode() + b"\n")


def detach_output() -> None:
    """Redirects output and errors to the null device, so that readers of the command's output see its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def start_detached(arguments: Sequence[str], *, wait: bool = False) -> int:
    """Starts this command again in a new session; returns the exit status once it is known.

    ``wait``: a model that failed to load is a failure, though the server keeps running.
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
        print_line("Interrupted, the server was not started.")
        return 130
    if outcome in (_STARTED, _STARTED_IN_PART):
        # The server keeps running: this process must not wait for it.
        process.returncode = 0
        print_line(STARTED_LINE)
        return int(wait and outcome == _STARTED_IN_PART)
    code = process.wait()
    if outcome is None:
        outcome = f"modelserver ended with status {code} before it listened."
    print_line(outcome.removeprefix(_FAILED))
    return code or 1


def known_as() -> list[str]:
    """An argument that marks a server started as ``torchserve`` for programs that look for TorchServe.

    SageMaker's toolkit waits for the process with the name of TorchServe's Java class in its command line.
    """
    return ["--known-as", JAVA_CLASS] if os.environ.get(STARTED_AS) == TORCHSERVE else []


def follow(lines: Iterable[str]) -> str | None:
    """Shows the progress on a terminal; returns the last other line, None without one."""
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
    """Yields a function that shows a text beside a spinner; it does nothing without a terminal."""
    if not sys.stdout.isatty():
        yield lambda _: None
        return
    # Imported only if needed.
    from rich.console import Console  # noqa: PLC0415

    with Console(stderr=True).status("Starting") as status:
        yield status.update
