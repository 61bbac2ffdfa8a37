"""Directories for files of a process that it removes at its end, or others after it.

A process locks its directory, which tells whether it is still there: its number does not, as the server of a
container has the same one each time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.engine.file_locks import taken

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    made, lock = _made(base)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _made(base: Path) -> tuple[Path, int | None]:
    while True:
        made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
        try:
            lock = _locked(made)
        except OSError:
            return made, None
        # Without a lock, another process swept it away between these two steps.
        if lock is not None:
            return made, lock


def _locked(directory: Path) -> int | None:
    """A descriptor that locks it; None if another process does. Raises OSError."""
    return taken(directory, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_EX)
