"""The PID file of the server: ``<temp>/.model_server.pid`` (reference 2.1).

The server locks it, and the lock ends with the process, however it ends. The number alone does not tell
whether it is running: the system reuses numbers, and in a container the next server has the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from modelserver.engine.file_locks import is_at, open_locked


def pid_file() -> Path:
    """One per temporary directory, as in TorchServe."""
    return Path(tempfile.gettempdir()) / ".model_server.pid"


def address_file() -> Path:
    """Where a running server tells its inference address, as JSON."""
    return Path(tempfile.gettempdir()) / ".model_server.address"


def running_server(path: Path) -> int | None:
    """The process id of the live server that the file names; None if there is none."""
    pid = read_pid(path)
    if pid is None:
        return None
    try:
        lock = open_locked(path, os.O_RDONLY, fcntl.LOCK_SH)
    except OSError:
        return None
    if lock is not None:
        os.close(lock)
        return None
    # Gone by now, if it ended in between.
    return read_pid(path)


def is_alive(pid: int) -> bool:
    """Whether there is such a process; a zombie has ended, however long nobody asks for its status."""
    import psutil  # noqa: PLC0415 - the health check pays for each import

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def read_pid(path: Path) -> int | None:
    """The process id in the file; None if there is none."""
    try:
        pid = int(path.read_text("ascii").strip())
    except (OSError, ValueError):
        return None
    # 0 and below stand for process groups, which must not get signals because of such a file.
    return pid if pid > 0 else None


def remove_orphan(path: Path) -> bool:
    """Removes the file unless a live server has locked it; returns whether there was one to remove."""
    with contextlib.suppress(OSError):
        lock = open_locked(path, os.O_RDONLY, fcntl.LOCK_EX)
        if lock is not None:
            path.unlink(missing_ok=True)
            os.close(lock)
            return True
    return False


@contextlib.contextmanager
def own_pid_file(path: Path) -> Iterator[None]:
    """The file with this process's id, written in one step, locked, and removed at the end.

    Raises:
        FileExistsError: the file names another live server, started at the same time.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    # Perhaps left by a killed process of this number.
    temporary.unlink(missing_ok=True)
    lock = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            os.write(lock, str(os.getpid()).encode("ascii"))
            with contextlib.suppress(OSError):  # not everywhere can files be locked
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_orphan(path)
            os.link(temporary, path)
        finally:
            temporary.unlink()
        yield
    finally:
        with contextlib.suppress(OSError):
            if is_at(lock, path):
                path.unlink()
        os.close(lock)
