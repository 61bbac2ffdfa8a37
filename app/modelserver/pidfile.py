"""The PID file of the server: ``<temp>/.model_server.pid`` (reference 2.1)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import psutil

MARKER = "modelserver"


def pid_file() -> Path:
    """One per temporary directory, as in TorchServe."""
    return Path(tempfile.gettempdir()) / ".model_server.pid"


def read_pid(path: Path) -> int | None:
    """The process id in the file; None if there is none."""
    try:
        pid = int(path.read_text("ascii").strip())
    except (OSError, ValueError):
        return None
    # 0 and below stand for process groups, which must not get signals because of such a file.
    return pid if pid > 0 else None


def is_server(pid: int) -> bool:
    """Whether the process is alive and a model server: the system reuses ids."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any(
            Path(part).name == MARKER for part in process.cmdline()
        )
    except psutil.Error:
        return False


def write_pid(path: Path) -> None:
    """Writes this process's id, in one step.

    Raises:
        FileExistsError: the file names another live server, started at the same time.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(str(os.getpid()), "ascii")
    try:
        present = read_pid(path)
        if present is None or not is_server(present):
            path.unlink(missing_ok=True)
        os.link(temporary, path)
    finally:
        temporary.unlink()


def remove_own(path: Path) -> None:
    """Removes the file if it still names this process."""
    if read_pid(path) == os.getpid():
        with contextlib.suppress(OSError):
            path.unlink()
