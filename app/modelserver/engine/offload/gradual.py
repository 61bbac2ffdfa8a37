"""Work on thousands of items that are due at once, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

# Items in a turn of the event loop.
_AT_ONCE = 32

_T = TypeVar("_T")


class GradualCalls(Generic[_T]):
    """Calls ``work`` with each added item: always later, and with a few items in each turn of the loop."""

    def __init__(self, work: Callable[[_T], object]) -> None:
        self._work = work
        self._waiting: deque[_T] = deque()

    def add(self, item: _T) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._continue)
        self._waiting.append(item)

    def _continue(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            self._work(self._waiting.popleft())
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._continue)
