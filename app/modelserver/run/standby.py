"""One of several servers that share a folder of snapshots is active; the others wait for its end.

The active one holds a lock in the folder, which the system releases when its process ends, however it ends.
The lock does not keep an active server from serving that has lost the folder itself, as by a network failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from modelserver.engine.file_locks import open_locked
from modelserver.errors import ConfigError

LOCK = ".active"
# Seconds between attempts: taking over cannot be quicker.
_PAUSE = 0.25


@contextlib.asynccontextmanager
async def active(folder: Path, on_waiting: Callable[[str], None]) -> AsyncIterator[None]:
    """Waits until no other server is active in the folder; this one is, until the block ends.

    ``on_waiting`` is called once if there is another one, with its name. Raises ConfigError if the folder
    cannot be used.
    """
    path, waits = folder / LOCK, False
    while (descriptor := await asyncio.to_thread(_taken, path)) is None:
        if not waits:
            waits = True
            on_waiting(await asyncio.to_thread(_name_in, path))
        await asyncio.sleep(_PAUSE)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open_locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, 0o644)
    except OSError as error:
        raise ConfigError(f"standby=true: {path} cannot be used: {error.strerror}") from error


def _name_in(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace")[:200] or "another server"
    return "another server"
