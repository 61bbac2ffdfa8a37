"""Requests and answers that would hold up the event loop: worked on aside, by helpers and threads."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from modelserver.errors import InternalError, ModelServerError, PayloadTooLarge, ServiceUnavailable
from modelserver.offload.helpers import Helpers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_log = logging.getLogger("modelserver.api")

# Of bodies, in bytes: what may be worked on aside or wait for it, besides one that has it all for itself.
MOST_WAITING = 64 << 20
# Of a helper: what it needs itself, and for each byte of the largest body.
_ADDRESS_SPACE = 512 << 20
_SPACE_PER_BYTE = 64


class Aside:
    """What is worked on aside, and the helpers for it.

    Args:
        max_body: bytes that a body may have.
    """

    def __init__(self, max_body: int) -> None:
        memory = _ADDRESS_SPACE + _SPACE_PER_BYTE * max_body
        self.helpers = Helpers("bodies", 1, memory, PayloadTooLarge)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0

    def start(
        self, size: int, work: Coroutine[None, None, None], fail: Callable[[ModelServerError], None]
    ) -> Callable[[], None]:
        """Begins work on ``size`` bytes and returns what ends it; ``fail`` is told its error."""
        if self._waiting and self._waiting + size > MOST_WAITING:
            work.close()
            fail(ServiceUnavailable("Too many large bodies wait to be read."))
            return lambda: None
        self._waiting += size
        task = asyncio.get_running_loop().create_task(self._run(work, fail))
        self._tasks.add(task)

        def done(_: object) -> None:
            # Here, for a task that is ended at once does not even begin.
            self._tasks.discard(task)
            self._waiting -= size
            work.close()

        def end() -> None:
            task.cancel()

        task.add_done_callback(done)

        return end

    @staticmethod
    async def _run(work: Coroutine[None, None, None], fail: Callable[[ModelServerError], None]) -> None:
        try:
            await work
        except ModelServerError as error:
            fail(error)
        except Exception:  # noqa: BLE001 - the last place where an error becomes an answer
            _log.exception("Failure while working on a request aside")
            fail(InternalError())

    async def settle(self, grace: float) -> None:
        """Waits for what is worked on, at most ``grace`` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)

    def close(self) -> None:
        """Ends the helpers."""
        self.helpers.close()
