"""Requests and answers that would block the event loop are processed aside, by helpers and threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from modelserver.engine.offload.gradual import GradualCalls
from modelserver.engine.offload.helpers import Helpers
from modelserver.errors import InternalError, ModelServerError, PayloadTooLarge, ServiceUnavailable
from modelserver.surface.http.content import inflate
from modelserver.surface.http.exchange import Exchange

_log = logging.getLogger("modelserver.api")

# Bytes of bodies that may be processed aside or wait for it; a single body may be larger.
MOST_WAITING = 64 << 20
# Bytes of memory that a helper needs, and for each byte of the largest body.
_ADDRESS_SPACE = 512 << 20
_SPACE_PER_BYTE = 64


class OffLoop:
    """The work that is done aside, and the helpers for it.

    ``later`` is called with functions that many requests may need at once: it calls a few in each turn of the
    loop.

    Args:
        max_body: maximum size of a body in bytes.
    """

    def __init__(self, max_body: int) -> None:
        memory = _ADDRESS_SPACE + _SPACE_PER_BYTE * max_body
        self.helpers = Helpers("bodies", 1, memory, PayloadTooLarge)
        self.later = GradualCalls().add
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0

    def start(
        self, size: int, work: Coroutine[None, None, None], fail: Callable[[ModelServerError], None]
    ) -> Callable[[], object]:
        """Starts work on ``size`` bytes and returns a function that cancels it; ``fail`` gets its error."""
        if size and self._waiting and self._waiting + size > MOST_WAITING:
            work.close()
            fail(ServiceUnavailable("Too many large bodies wait to be read."))
            return lambda: None
        self._waiting += size
        task = asyncio.get_running_loop().create_task(self._run(work, fail))
        self._tasks.add(task)

        def done(_: object) -> None:
            # A task that is cancelled at once never starts: it could not clean up itself.
            self._tasks.discard(task)
            self._waiting -= size
            work.close()

        task.add_done_callback(done)
        return task.cancel

    @staticmethod
    async def inflate(exchange: Exchange, limit: int) -> None:
        """Removes the body's encoding, in a thread. Raises as :func:`.content.inflate`."""
        encoding, exchange.encoding = exchange.encoding, b""
        exchange.body = await asyncio.to_thread(inflate, exchange.body, encoding, limit)

    @staticmethod
    async def _run(work: Coroutine[None, None, None], fail: Callable[[ModelServerError], None]) -> None:
        try:
            await work
        except ModelServerError as error:
            fail(error)
            # A function that raised the error again is in its traceback with its caller, which has the error:
            # a reference cycle.
            error.__traceback__ = None
        except Exception:  # noqa: BLE001 - the last place where an error becomes an answer
            _log.exception("Failure while processing a request aside")
            fail(InternalError())

    async def settle(self, grace: float) -> None:
        """Waits at most ``grace`` seconds for the work to finish."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)

    def close(self) -> None:
        """Ends the helpers."""
        self.helpers.close()
