"""Work on thousands of items that are due at once, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

# Calls in a turn of the event loop.
_AT_ONCE = 32


class GradualCalls:
    """Makes each added call: always later, and a few in each turn of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def add(self, call: Callable[..., object], *arguments: object) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._continue)
        self._waiting.append((call, arguments))

    def _continue(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            call, arguments = self._waiting.popleft()
            call(*arguments)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._continue)
