import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")


async def until(happened: Callable[[], Any], patience: float = 20.0) -> None:
    """Returns when it has happened; fails the test after so many seconds."""
    deadline = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain"
        await asyncio.sleep(0.002)


async def turns_of(work: Awaitable[_T]) -> tuple[_T, int]:
    """Its result, and how many turns other work on the event loop had meanwhile."""
    done, turns = asyncio.ensure_future(work), 0
    while not done.done():
        await asyncio.sleep(0)
        turns += 1
    return done.result(), turns


async def gone(*pids: int) -> None:
    await until(lambda: not any(map(is_alive, pids)))


def is_alive(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
