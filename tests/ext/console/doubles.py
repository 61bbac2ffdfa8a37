import asyncio
from collections.abc import Callable
from typing import Any

from modelserver.surface.http.exchange import Exchange, Target
from modelserver.surface.inference.routes import target_finder


class Hot:
    """Keeps the exchanges, and answers them with ``answer`` if it is set."""

    def __init__(self) -> None:
        self.exchanges: list[Any] = []
        self.answer: Callable[[Any], None] = lambda _: None

    def find(self, url: bytes) -> Target | None:
        return target_finder()(url)

    def serve(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.answer(exchange)


class Waiting:
    """A helper process whose calls do not end; ``count`` of them are not given up."""

    def __init__(self) -> None:
        self.count = 0

    async def call(self, *_: object) -> None:
        self.count += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.count -= 1

    def close(self) -> None:
        """There is no process."""
