"""``modelserver.serve``: serves a handler from the script that defines it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_IN_WORKER = "modelserver_handlers.loader"


def serve(
    handler: type[Any] | Callable[..., Any],
    *,
    name: str | None = None,
    batch_size: int | None = None,
    max_batch_delay: int | None = None,
    workers: int | None = None,
    port: int | None = None,
    model_file: str | os.PathLike[str] | None = None,
    reload: bool = False,
) -> int:
    """Serves a class or function of a script until Ctrl-C; returns the exit status of the server.

    The server is a process of its own, as ``modelserver serve`` starts it, and its workers import the script:
    call this below ``if __name__ == "__main__":``. In a worker it returns at once.

    Args:
        handler: a :class:`modelserver.Handler`, another class with ``handle``, ``handle(data, context)``, or
            a function with annotations.
        name: of the model in URLs; by default that of the class or function.
        batch_size: the most requests in a batch, 1 by default.
        max_batch_delay: milliseconds that a batch may wait for more requests.
        workers: processes with the handler, 1 by default.
        port: of predictions, 8080 by default; the next two are for management and metrics.
        model_file: weights, as the ``serializedFile`` of the manifest.
        reload: load the handler again when its files change.

    Raises:
        ValueError: the handler is not in a file, or not at the top level of it.
    """
    if _IN_WORKER in sys.modules:
        return 0
    values = {
        "--name": name,
        "--batch-size": batch_size,
        "--max-batch-delay": max_batch_delay,
        "--workers": workers,
        "--port": port,
        "--model-file": None if model_file is None else os.fspath(model_file),
    }
    flags = [text for flag, value in values.items() if value is not None for text in (flag, str(value))]
    flags += ["--reload"] if reload else []
    return _run([sys.executable, "-m", "modelserver", "serve", source_of(handler), *flags])


def source_of(handler: Any) -> str:
    """``FILE:NAME`` of a class or function. Raises ValueError if there is none."""
    label = getattr(handler, "__qualname__", None) or repr(handler)
    if not callable(handler) or not hasattr(handler, "__qualname__"):
        raise ValueError(
            f"{label} is neither a class nor a function: pass the class itself, without (); a file is served "
            "by `modelserver serve FILE`"
        )
    if "." in label:
        raise ValueError(
            f"{label} is defined inside of another class or function, where workers cannot import it: define "
            "it at the top level of its file"
        )
    file = getattr(sys.modules.get(handler.__module__), "__file__", None)
    if file is None or not Path(file).is_file():
        raise ValueError(
            f"{label} is not in a file: workers import it from its script, so save it in one (a notebook or "
            "an interactive session has none)"
        )
    return f"{os.path.abspath(file)}:{label}"


def _run(command: list[str]) -> int:
    process = subprocess.Popen(  # noqa: S603 - our own interpreter with checked flags
        [*command, "--parent", str(os.getpid())],
        # Ctrl-C reaches the server once, passed on by this process.
        start_new_session=True,
    )
    with _passing_on(process):
        return process.wait()


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Passes SIGINT and SIGTERM on to the process, which then ends in good order."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may set signal handlers; the server ends with this process anyway.
        yield
        return
    before = {
        number: signal.signal(number, lambda number, _: process.send_signal(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
