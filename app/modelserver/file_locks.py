"""Locks on files, which the system releases when the process that holds one ends, however it ends; and when
a file is on the disk.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def taken(path: Path, flags: int, lock: int, mode: int = 0o600) -> int | None:
    """The descriptor of the file, locked; None if another holds the lock or the file is missing.

    ``flags`` as for :func:`os.open`, ``lock`` is LOCK_SH or LOCK_EX. Tries again if the file was removed or
    replaced before it was locked. Raises OSError.
    """
    while True:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                kept, descriptor = descriptor, -1
                return kept
        except BlockingIOError:
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def sync(path: str | Path) -> None:
    """Waits until the disk has the file or folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the path still names the descriptor's file. Raises OSError."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
