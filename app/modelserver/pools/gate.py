"""How many workers load at once: side by side is quicker, but not if it takes the machine's last memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from modelserver.resources import available_memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

__all__ = ["StartGate", "available_memory", "need_of"]

# Workers that load at the same time, of all models together (F57).
MAX_LOADING = 8
# Bytes that a worker needs beside its model: an interpreter with torch and what computing takes.
BASE_NEED = 512 << 20
# A model's files may be in memory twice while they are loaded: as read, and as put into the network.
COPIES = 2


def need_of(model_dir: Path) -> int:
    """Bytes that loading a model may take, by the size of its files."""
    size = 0
    for path in model_dir.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                size += path.stat().st_size
    return BASE_NEED + COPIES * size


class StartGate:
    """Lets workers load, first come first served.

    One may always; further ones as long as there are less than ``limit``, and memory for all that they may
    still take.
    """

    def __init__(self, limit: int = MAX_LOADING, available: Callable[[], float] = available_memory) -> None:
        self._limit = limit
        self._available = available
        self._loading = 0
        self._promised = 0
        # What each needs, and its turn.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def free(self) -> float:
        """Bytes that can be had beside those that are promised to workers which load or are to load."""
        return self._available() - self._promised - sum(need for need, _ in self._waiting)

    @contextlib.asynccontextmanager
    async def place(self, need: int) -> AsyncIterator[None]:
        """Waits for its turn, and holds a place while the body runs; ``need`` is in bytes."""
        waiting = need, asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._admit()
        try:
            await waiting[1]
            yield
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                # Its turn had come.
                self._loading -= 1
                self._promised -= need
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._may_load(self._waiting[0][0]):
            need, turn = self._waiting.popleft()
            self._loading += 1
            self._promised += need
            # Whoever was waiting may be about to leave: then that gives the place back.
            if not turn.done():
                turn.set_result(None)

    def _may_load(self, need: int) -> bool:
        if self._loading == 0:
            return True
        return self._loading < self._limit and self._available() - self._promised >= need
