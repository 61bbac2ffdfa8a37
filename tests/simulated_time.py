"""An event loop whose time passes only as its timers ask for it, so that a test of hours takes none."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class Clock(selectors.SelectSelector):
    """Instead of waiting for ``timeout`` seconds it is later by so many."""

    now = 0.0

    def select(self, timeout: float | None = None):
        self.now += timeout or 0.0
        return super().select(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs the coroutine to its end; its loop runs calls for other threads at once."""
    clock = Clock()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now  # type: ignore[method-assign]
    loop.run_in_executor = _at_once  # type: ignore[assignment]
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()


def _at_once(_: object, call: Callable[..., object], *args: object) -> None:
    call(*args)
