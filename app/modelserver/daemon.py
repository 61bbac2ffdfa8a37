"""Starting the server in the background: the command returns when it listens, or says why it does not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

_STARTED = "started"


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

    def started(self) -> None:
        """The listeners accept connections. From now on nothing is tied to the terminal any more."""
        self._tell(_STARTED)
        if self._descriptor is not None:
            detach_output()
            self._descriptor = None

    def failed(self, reason: str) -> int:
        """The start failed; returns the exit status."""
        if self._descriptor is None:
            print(reason, flush=True)  # noqa: T201 - the command's answer
        else:
            self._tell(reason)
        return 1

    def _tell(self, text: str) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, text.encode())
                os.close(self._descriptor)


def detach_output() -> None:
    """Points standard output and error at nothing: whoever reads the command's output sees its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def start_detached(arguments: Sequence[str]) -> int:
    """Starts this command again as a process of its own session; returns the exit status once the outcome is known."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "modelserver", *arguments, "--ready-fd", str(writing)],
            stdin=subprocess.DEVNULL,
            pass_fds=[writing],
            start_new_session=True,
        )
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as outcome:
        text = outcome.read().decode("utf-8", "replace")
    if text == _STARTED:
        # The server lives on: this process must not wait for it.
        process.returncode = 0
        return 0
    code = process.wait()
    print(text or f"modelserver ended with status {code} before it listened.", flush=True)  # noqa: T201
    return code or 1
