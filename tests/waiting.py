"""Waiting for what takes a moment."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


async def until(happened: Callable[[], Any], patience: float = 20.0) -> None:
    """Returns when it has happened; fails the test after so many seconds."""
    deadline = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain"
        await asyncio.sleep(0.002)


async def gone(*pids: int) -> None:
    """Waits for the end of processes."""
    await until(lambda: not any(map(is_alive, pids)), 10)


def is_alive(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
