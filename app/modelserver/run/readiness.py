"""What the server reports of its start, to the command that waits for it or on its own output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

# Scripts wait for this line on standard output (reference 1).
STARTED_LINE = "Model server started."

# Lines that the serving process writes to the command.
STARTED = "started"
IN_PART = "started in part"
FAILED = "failed "
PROGRESS = "progress "


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
            self._write(self._descriptor, PROGRESS + text)

    def started(self, loaded: bool = True) -> None:
        """The listeners accept connections; detaches from the terminal. ``loaded``: no model has failed."""
        if self._descriptor is None:
            self.print(STARTED_LINE)
        else:
            self._end(STARTED if loaded else IN_PART)
            detach_output()

    def failed(self, reason: str) -> int:
        """The start failed; returns the exit status."""
        if self._descriptor is None:
            self.print(reason)
        else:
            self._end(FAILED + reason)
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
