"""One model version that is loaded on demand: parked, waiting for memory, loading, loaded, or failed."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from modelserver.engine.pools.worker import Worker
from modelserver.errors import Conflict, DeadlineExceeded, InternalError, ModelServerError, ServiceUnavailable
from modelserver.ext.parking.needs import Need
from modelserver.models.version import ModelVersion

_log = logging.getLogger("modelserver.models")

# Why a model is parked.
IDLE, MEMORY, REQUEST = "idle", "memory", "request"
# Seconds until a failed load is tried again: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0


class TooLarge(InternalError):
    """There is not enough memory for the model."""

    status = 507


class ResidentOwner(Protocol):
    """Says when a resident's workers are started and ended, and learns what becomes of them."""

    clock: Callable[[], float]

    def soon(self, resident: Resident) -> None:
        """Something of it has changed."""

    def need_of(self, resident: Resident) -> Need:
        """Returns the memory that the model needs."""

    def shortage_of(self, resident: Resident) -> ModelServerError | None:
        """Returns what its requests receive whose time passes while they wait for memory."""

    def loaded(self, resident: Resident, *, cold: int) -> None:
        """Its workers have loaded, which ``cold`` requests have waited for."""

    def failed(self, resident: Resident, error: ModelServerError) -> None:
        """Its workers could not load the model."""

    def park(self, resident: Resident, reason: str) -> None:
        """Parks the model at a client's request."""


class Resident:
    """Starts and ends the workers of a version when its owner calls for it.

    ``memory``: bytes of its workers, ``device_memory`` by GPU; 0 and empty until they are measured. Times are
    of the owner's clock:
    ``waiting_since`` a request needs workers that have no place yet, None if none does; ``retry_at`` another
    load may begin after a failure.
    """

    def __init__(self, owner: ResidentOwner, model: ModelVersion) -> None:
        self.model = model
        self.pool = model.pool
        self.key = f"{model.name}/{model.version}"
        self.memory = 0
        self.device_memory: dict[int, int] = {}
        self.load_seconds = 0.0
        self.loaded_at = self.used_at = -math.inf
        self.waiting_since: float | None = None
        self.parks: Counter[str] = Counter()
        self.prewarms: Counter[str] = Counter()
        self.loads = self.failed_loads = 0
        self._owner = owner
        self._is_starting = True
        self._served = 0
        self._in_a_row = 0
        self._failure: ModelServerError | None = None
        self.retry_at = 0.0
        # What waits in :meth:`load`, its bytes, and since when.
        self._loads: dict[asyncio.Future[None], tuple[int, float]] = {}

    # -- for the pool

    @property
    def refusal(self) -> ModelServerError | None:
        """The failure of the last load, until the next one may begin."""
        left = self.retry_at - self._owner.clock()
        if self._failure is None or left <= 0:
            return None
        kind = TooLarge if self._failure.status == TooLarge.status else ServiceUnavailable
        return refusal_of(self.model.name, kind, self._failure.message, left)

    def wake(self) -> None:
        if self.waiting_since is None:
            self.waiting_since = self._owner.clock()
            self.changed()

    def changed(self) -> None:
        if not self.pool.workers:
            # Also if it was scaled; whatever starts the next worker loads the model again.
            self.memory, self.device_memory, self._is_starting = 0, {}, True
            waits = self.pool.queue.requests or not all(each.done() for each in self._loads)
            if waits and self.refusal is None:
                self.wake()
        self._owner.soon(self)

    async def load(self, size: int = 0, seconds: float = math.inf) -> None:
        if self.state == "loaded":
            return
        if self.refusal is not None:
            # No variable has it: its traceback would hold the frame, and with it the request.
            raise self.refusal
        self._admit(size)
        if not self.pool.workers:
            self.wake()
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loads[loaded] = size, self._owner.clock()
        try:
            await asyncio.wait_for(loaded, None if math.isinf(seconds) else seconds)
        except asyncio.TimeoutError:
            self.model.metrics.requests.expired()
            text = f"The deadline of the request passed before model {self.model.name} was loaded."
            raise self._owner.shortage_of(self) or DeadlineExceeded(text) from None
        finally:
            del self._loads[loaded]

    def _admit(self, size: int) -> None:
        """Raises ServiceUnavailable if the queue is too small for what waits for the load, and for this."""
        queue, sizes = self.pool.queue, (size for size, _ in self._loads.values())
        if queue.requests + len(self._loads) >= queue.max_requests:
            reason = "requests"
        elif self._loads and queue.nbytes + sum(sizes) + size > queue.max_bytes:
            reason = "bytes"
        else:
            return
        self.model.metrics.requests.rejected(reason)
        raise self._queue_full()

    def _queue_full(self) -> ModelServerError:
        # Metrics count it as those of a full queue, by the name of its class.
        error = ServiceUnavailable(f"Too many requests wait until model {self.model.name} is loaded.")
        error.openai_status = 429
        return error

    def loaded(self, seconds: float) -> None:
        self.loaded_at = self._owner.clock()
        if self._is_starting:
            # A process that replaces a dead one is not started here. The waits of a server's first load, such
            # as for the process from which workers are forked, are no property of the model.
            self.load_seconds, self._is_starting = seconds, False
            self.loads += 1
            self._owner.loaded(self, cold=self.pool.queue.requests + len(self._loads))
        self._failure, self._in_a_row = None, 0
        self.release()

    def park(self) -> None:
        if self._is_busy:
            raise Conflict(f"Model {self.model.name} {self.model.version} is not parked: it has requests.")
        if self.pool.workers:
            self._owner.park(self, REQUEST)

    def describe(self) -> dict[str, Any]:
        need = self._owner.need_of(self)
        left = self.retry_at - self._owner.clock()
        is_failed = self.state == "failed"
        return {
            "state": self.state,
            "memory": self.memory or None,
            "need": need.memory,
            "deviceMemory": {str(gpu): size for gpu, size in self.device_memory.items()} or None,
            "deviceNeed": need.device or None,
            "loadTime": round(need.seconds * 1000) or None,
            "loads": self.loads,
            "failedLoads": self.failed_loads or None,
            "parks": dict(self.parks) or None,
            "prewarms": dict(self.prewarms) or None,
            "failure": self._failure.message if is_failed and self._failure else None,
            "nextTry": round(time.time() + left, 3) if is_failed else None,
        }

    # -- for the owner

    @property
    def state(self) -> str:
        """One word."""
        if self.pool.workers:
            is_loaded = any(worker.is_ready for worker in self.pool.workers)
            return "loaded" if is_loaded else "loading"
        if self.refusal is not None:
            return "failed"
        return "parked" if self.waiting_since is None else "waiting"

    @property
    def _is_busy(self) -> bool:
        """Whether it has requests, or sequences that need a worker's state."""
        living = 0 if self.pool.affinity is None else self.pool.affinity.statistics["living"]
        return bool(self.pool.queue.requests or self.pool.crew.busy or self._loads or living)

    @property
    def may_park(self) -> bool:
        """Whether it is loaded, and neither busy nor to stay loaded."""
        stays = self.model.options.values["pin"] or self.pool.min_workers
        return self.state == "loaded" and not stays and not self._is_busy

    def count_requests(self, now: float) -> int:
        """The requests that were answered since the last call; ``used_at`` follows."""
        served = sum(worker.flights.served for worker in self.pool.workers)
        new, self._served = max(0, served - self._served), served
        if new or self._is_busy:
            self.used_at = now
        return new

    def start(self) -> None:
        """Starts the workers, which requests wait for."""
        self.waiting_since = None
        for worker in self.pool.crew.resize(max(1, self.pool.min_workers)):
            worker.first_load.add_done_callback(partial(self._tried, worker))

    def end(self, reason: str) -> None:
        """Ends the workers; they finish the batches that they have begun."""
        self.parks[reason] += 1
        self.pool.crew.resize(0)

    def release(self) -> None:
        """Ends all waits in :meth:`load`, because the model has loaded or its pool closes."""
        for each in self._loads:
            if not each.done():
                each.set_result(None)

    def refuse_late(self, before: float) -> None:
        """Refuses what has waited for memory since ``before`` or longer; the rest waits on."""
        waits: list[tuple[float, Callable[[Exception], object]]] = []
        waits += [(since, load.set_exception) for load, (_, since) in self._loads.items() if not load.done()]
        waits += [(each.arrived, partial(self.pool.admission.abort, each)) for each in self.pool.queue.all()]
        for since, refuse in waits:
            if since <= before and (shortage := self._owner.shortage_of(self)) is not None:
                refuse(shortage)
        self.waiting_since = min((since for since, _ in waits if since > before), default=None)

    def fail(self, error: ModelServerError) -> None:
        """Refuses what waits; another load may begin after a pause, which is longer each time."""
        self.failed_loads += 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._in_a_row)
        self._in_a_row = min(self._in_a_row + 1, 20)
        self._failure, self.retry_at = error, self._owner.clock() + pause
        _log.warning("Model %s %s is not loaded: %s", self.model.name, self.model.version, error.message)
        self.waiting_since = None
        # Workers are gone, or are of no use: the pool sees that there is no hope, and refuses what waits.
        self.pool.crew.resize(0)
        for each in self._loads:
            if not each.done():
                each.set_exception(self.refusal or error)

    def _tried(self, worker: Worker, load: asyncio.Future[None]) -> None:
        error = None if load.cancelled() else load.exception()
        if self.pool.admission.closing:
            self.release()
        elif isinstance(error, ModelServerError) and worker in self.pool.workers and self.state != "loaded":
            # One that was stopped while it loaded has not failed.
            asyncio.get_running_loop().call_soon(self._owner.failed, self, error)


def refusal_of(name: str, kind: type[ModelServerError], reason: str, seconds: float) -> ModelServerError:
    """An error that says why the model is not loaded, and when to try again."""
    refusal = kind(f"Model {name} is not loaded: {reason}")
    refusal.headers = ((b"retry-after", str(math.ceil(seconds)).encode()),)
    return refusal
