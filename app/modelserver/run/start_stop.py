"""The command ``modelserver``: starts a server, in the background unless told otherwise, and stops it.

In the background it returns when the server listens, or prints why it does not. Its messages and exit codes
are those of TorchServe (reference 2).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace  # noqa: TC003 - loaded with the flags
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from modelserver import __version__
from modelserver.errors import ConfigError
from modelserver.extension import ExtensionRow
from modelserver.models.settings.key import TORCHSERVE
from modelserver.models.settings.sources import STARTED_AS
from modelserver.run.cli import ALREADY_RUNNING, build_parser, check, print_json, serve
from modelserver.run.pidfile import is_alive, pid_file, remove_orphan, running_server
from modelserver.run.readiness import FAILED, IN_PART, PROGRESS, STARTED, STARTED_LINE, Readiness, print_line
from modelserver.surface.auth.scopes import KEY_FILE

STOP_TIMEOUT = 60.0
JAVA_CLASS = "org.pytorch.serve.ModelServer"


def main(arguments: Sequence[str], extensions: Mapping[str, ExtensionRow], epilog: str = "") -> int:
    """Runs the command of the server, which may have these extensions; returns its exit status."""
    options = build_parser(epilog).parse_args(arguments)
    if options.version:
        print(f"modelserver Version is {__version__}")
        return 0
    try:
        if options.stop:
            return stop(quiet=options.foreground)
        return start(options, arguments, extensions)
    except ConfigError as error:
        print_line(str(error))
        return 1


def start(options: Namespace, arguments: Sequence[str], extensions: Mapping[str, ExtensionRow]) -> int:
    """Starts the server, in this process with ``--foreground``, otherwise detached."""
    try:
        loaded = check(options, extensions)
    except ConfigError as error:
        return Readiness(options.ready_fd).failed(str(error))
    as_json = options.foreground and loaded.settings.log_format == "json"
    readiness = Readiness(options.ready_fd, print_json if as_json else print_line)
    path = pid_file()
    if running_server(path) is not None:
        return readiness.failed(ALREADY_RUNNING)
    if remove_orphan(path):
        readiness.print("Removing orphan pid file.")
    if not options.foreground and options.ready_fd is None:
        return start_detached(arguments, wait=options.wait)
    return serve(options, loaded, readiness, extensions)


def stop(*, quiet: bool) -> int:
    """Stops the running server (reference 2.2) and waits for its end, which frees its ports."""
    path = pid_file()
    pid = running_server(path)
    if pid is None:
        remove_orphan(path)
        print_line("modelserver is not currently running.")
        return 0
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        print_line("modelserver already stopped.")
        remove_orphan(path)
        return 0
    except PermissionError:
        print_line(f"modelserver (process {pid}) belongs to another user and cannot be stopped.")
        return 1
    Path(KEY_FILE).unlink(missing_ok=True)
    deadline = time.monotonic() + STOP_TIMEOUT
    while is_alive(pid):
        if time.monotonic() > deadline:
            print_line("Stopping modelserver took too long.")
            return 0
        time.sleep(0.05)
    remove_orphan(path)
    if not quiet:
        print_line("modelserver has stopped.")
    return 0


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
    if outcome in (STARTED, IN_PART):
        # The server keeps running: this process must not wait for it.
        process.returncode = 0
        print_line(STARTED_LINE)
        return int(wait and outcome == IN_PART)
    code = process.wait()
    if outcome is None:
        outcome = f"modelserver ended with status {code} before it listened."
    print_line(outcome.removeprefix(FAILED))
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
            if text.startswith(PROGRESS):
                show(text.removeprefix(PROGRESS))
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
