"""Locks on files, which the system releases at any end of the process that holds one; files that are written
in one step; syncing to the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from uuid import uuid4


def open_locked(path: Path, flags: int, lock: int, mode: int = 0o600) -> int | None:
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
                locked, descriptor = descriptor, -1
                return locked
        except BlockingIOError:
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, synced: bool = False) -> None:
    """Writes a file in one step: a reader gets either the previous content or all of ``content``.

    ``synced``: it survives a loss of power. Raises OSError, and leaves nothing behind then.
    """
    # Containers that share a folder may have processes of the same number.
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    if synced:
        # Not every file system can sync a folder.
        with contextlib.suppress(OSError):
            sync(path.parent)


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
