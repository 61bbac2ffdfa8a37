"""Working directories: each process removes its own at its end, and those of processes that died.

A process holds a lock on its directory while it lives. Its pid would not tell, because the server of a
container has the same one each time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from modelserver.engine.file_locks import open_locked

_PREFIX = "modelserver-"


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """A directory of this process; removes those of processes that are gone."""
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{_PREFIX}[0-9]*-*"):
        # One that is not ours, or cannot be locked, stays.
        with contextlib.suppress(OSError):
            if left.stat().st_uid == os.getuid() and (lock := _locked(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
    made, lock = _create(base)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _create(base: Path) -> tuple[Path, int | None]:
    while True:
        made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
        try:
            lock = _locked(made)
        except OSError:
            return made, None
        # None: another process removed the directory between these two steps.
        if lock is not None:
            return made, lock


def _locked(directory: Path) -> int | None:
    """A descriptor that locks it; None if another process does. Raises OSError."""
    return open_locked(directory, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_EX)
