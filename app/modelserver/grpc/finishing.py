"""What is done to its end although nobody waits for it any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class Finishing:
    """A client that leaves, or whose deadline passes, does not stop the change that it began."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, act: Coroutine[Any, Any, _T]) -> _T:
        """Its result, or its error. To be cancelled while waiting does not cancel it."""
        task = asyncio.ensure_future(act)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen, if only here
