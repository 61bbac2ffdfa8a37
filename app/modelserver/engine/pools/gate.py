"""Limits how many workers load at once, so that they do not run out of memory."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from modelserver.engine.resources import available_memory

# Workers loading at once, of all models together (F57).
MAX_LOADING = 8
# Bytes that a worker needs besides its model: an interpreter with torch, and working memory.
BASE_NEED = 512 << 20
# While loading, a model's files may be in memory twice: as read, and in the network.
COPIES = 2


def need_of(model_dir: Path) -> int:
    """Bytes that loading a model may take, by the size of its files without those that Python compiles."""
    size = 0
    for path in model_dir.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.parent.name != "__pycache__":
                size += path.stat().st_size
    return BASE_NEED + COPIES * size


class StartGate:
    """Lets workers load: always one, more up to ``limit`` if there is memory for all of them.

    Those of models that are worth most are first, and of equal ones those that have waited longest.
    """

    def __init__(self, limit: int = MAX_LOADING, available: Callable[[], float] = available_memory) -> None:
        self._limit = limit
        self._available = available
        self._loading = 0
        self._promised = 0
        # A heap: each with its worth, below zero, its number, what it needs, and its turn.
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def free(self) -> float:
        """Available bytes, minus those promised to workers that are loading or waiting to."""
        return self._available() - self._promised - sum(need for _, _, need, _ in self._waiting)

    @contextlib.asynccontextmanager
    async def place(self, need: int, worth: float = math.inf) -> AsyncIterator[None]:
        """Waits for its turn, and holds a place while the body runs; ``need`` is in bytes."""
        turn = asyncio.get_running_loop().create_future()
        waiting = -worth, next(self._numbers), need, turn
        heapq.heappush(self._waiting, waiting)
        self._admit()
        try:
            await turn
            yield
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                heapq.heapify(self._waiting)
            else:
                # Its turn had come.
                self._loading -= 1
                self._promised -= need
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._may_load(self._waiting[0][2]):
            _, _, need, turn = heapq.heappop(self._waiting)
            self._loading += 1
            self._promised += need
            # If the waiter was cancelled, it gives the place back.
            if not turn.done():
                turn.set_result(None)

    def _may_load(self, need: int) -> bool:
        if self._loading == 0:
            return True
        return self._loading < self._limit and self._available() - self._promised >= need
