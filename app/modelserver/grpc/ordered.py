"""Work on a stream: several items at a time, the results in the order of the items."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_In = TypeVar("_In")
_Out = TypeVar("_Out")


async def in_order(
    items: AsyncIterator[_In], work: Callable[[_In], Awaitable[_Out]], window: int
) -> AsyncIterator[_Out]:
    """The results. At most ``window`` wait to be taken; then no further item is read.

    Raises:
        Exception: what ``items`` or ``work`` raises, when its turn has come.
    """
    begun: asyncio.Queue[asyncio.Future[_Out] | None] = asyncio.Queue()
    room = asyncio.Semaphore(window)

    async def read() -> None:
        try:
            async for item in items:
                begun.put_nowait(asyncio.ensure_future(work(item)))
                await room.acquire()
        finally:
            begun.put_nowait(None)

    reading = asyncio.ensure_future(read())
    current: asyncio.Future[_Out] | None = None
    try:
        while (current := await begun.get()) is not None:
            yield await current
            room.release()
        await reading
    finally:
        reading.cancel()
        for left in (current, *_rest(begun)):
            if left is not None:
                left.cancel()


def _rest(queue: asyncio.Queue[asyncio.Future[_Out] | None]) -> list[asyncio.Future[_Out] | None]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
