"""Work on thousands of things that are due at once, with other work in between."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

# Things in a turn of the loop.
_AT_ONCE = 32

_T = TypeVar("_T")


class InTurns(Generic[_T]):
    """Calls ``work`` with each thing, always later, and with only some in each turn of the event loop."""

    def __init__(self, work: Callable[[_T], object]) -> None:
        self._work = work
        self._waiting: deque[_T] = deque()

    def add(self, thing: _T) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._waiting.append(thing)

    def _go_on(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            self._work(self._waiting.popleft())
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
