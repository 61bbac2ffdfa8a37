"""Decides which of the models that are loaded on demand are loaded: as many as fit into the budget.

A request for a parked model waits in its queue until there is memory for the model, and it has loaded. When
there is none, models that nobody uses now are parked, the least valuable ones first. What a model needs is
what it had after its last load, before that an estimate by its files; and what it has is measured while it
is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Any

from modelserver.errors import ModelServerError, ServiceUnavailable
from modelserver.ext.parking.memory import own_memory
from modelserver.ext.parking.needs import Need, Needs
from modelserver.ext.parking.policy import Candidate, GreedyDual, choose
from modelserver.ext.parking.resident import IDLE, MEMORY, Resident, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from modelserver.ext.parking.meters import ParkingMeters
    from modelserver.models.version import ModelVersion

_log = logging.getLogger("modelserver.models")

# Seconds that a model stays loaded at least, between looks at all, and between measurements.
MIN_RESIDENCE = 10.0
LOOKS = 1.0
MEASURES = 10.0
# Bytes of a worker beside its model's files, until it has been measured; the files are in memory once.
BASE = 64 << 20
# The share of the free memory that all may have by default.
SHARE = 0.9
# Models whose metrics are shown at most, unless more are loaded.
MOST_VISIBLE = 200
MIB = 1 << 20


class Keeper:
    """Loads and parks the versions that :meth:`keep` was called with.

    ``budget``: bytes for the workers of all; 0: a share of what is free at the first call.
    ``memory_of`` measures those of processes.
    """

    def __init__(
        self,
        budget: float,
        needs: Needs,
        meters: ParkingMeters | None = None,
        *,
        memory_of: Callable[[Iterable[int]], int] = own_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self.clock = clock
        self.residents: list[Resident] = []
        self._needs = needs
        self._meters = meters
        self._memory_of = memory_of
        self._policy = GreedyDual()
        self._changed = asyncio.Event()
        self._unmeasured: set[Resident] = set()
        self._measured_at = -math.inf
        self._measuring: asyncio.Task[None] | None = None

    def keep(self, model: ModelVersion) -> None:
        """Loads the version on demand from now on."""
        if not self.budget:
            self.budget = SHARE * model.pool.crew.spec.gate.free()
        resident = Resident(self, model)
        model.pool.crew.on_demand = resident
        self.residents.append(resident)
        # Of a thousand models, metrics are shown of those that are used.
        model.metrics.series.hide()

    def soon(self) -> None:
        """Looks at everything in the next turn of the loop: something may have got a place."""
        self._changed.set()

    async def run(self) -> None:
        """Runs while the server listens."""
        await asyncio.to_thread(self._needs.load)
        while True:
            # Without a loaded model there is nothing to look at.
            is_idle = all(each.state == "parked" for each in self.residents)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), None if is_idle else LOOKS)
            self._changed.clear()
            try:
                self.look()
                self.place()
            except Exception:  # noqa: BLE001 - requests wait for the next look
                _log.exception("Loading models on demand failed")
            if self._measuring is None or self._measuring.done():
                # Requests do not wait for that.
                self._measuring = asyncio.create_task(self.measure())

    # -- events of residents

    def loaded(self, resident: Resident, *, cold: int) -> None:
        """Its workers have loaded, which ``cold`` requests have waited for."""
        self._unmeasured.add(resident)
        self._show(resident)
        if self._meters is not None:
            self._meters.loaded(resident.model, cold)
        _log.info("Model %s %s is loaded, in %.2f s", *_named(resident), resident.load_seconds)
        self.soon()

    def _show(self, resident: Resident) -> None:
        """Shows its metrics, instead of those of the parked model that was used least recently."""
        resident.model.metrics.series.show()
        visible = [each for each in self.residents if not each.model.metrics.series.is_hidden]
        if len(visible) > MOST_VISIBLE:
            parked = [each for each in visible if each.state == "parked"]
            if parked:
                min(parked, key=lambda each: each.used_at).model.metrics.series.hide()

    def failed(self, resident: Resident, error: ModelServerError) -> None:
        """Its workers could not load the model."""
        resident.fail(error)
        if self._meters is not None:
            self._meters.failed(resident.model)
        self.soon()

    def park(self, resident: Resident, reason: str) -> None:
        """Ends its workers; it is loaded again for the next request."""
        resident.end(reason)
        if self._meters is not None:
            self._meters.parked(resident.model, reason)
        _log.info("Model %s %s is parked (%s)", *_named(resident), reason)

    # -- looking

    def look(self) -> None:
        """Notes what was used, parks what is idle, and refuses what has waited or failed for too long."""
        now = self.clock()
        for resident in list(self.residents):
            if resident.pool.admission.closing:
                resident.release()
                self.residents.remove(resident)
                self._policy.forget(resident.key)
                continue
            if requests := resident.count_requests(now):
                self._policy.used(resident.key, requests, now)
            self._look_at(resident, now)

    def _look_at(self, resident: Resident, now: float) -> None:
        pool = resident.pool
        if pool.workers and not any(worker.may_serve for worker in pool.workers):
            self.failed(resident, ServiceUnavailable(pool.failure or "its workers have failed"))
        idle = now - max(resident.used_at, resident.loaded_at)
        timeout = resident.model.options.values["idle_timeout"]
        if timeout and idle >= timeout and resident.may_park:
            self.park(resident, IDLE)
        since = resident.waiting_since
        if since is not None and now - since >= resident.model.options.startup_timeout:
            need = self.need_of(resident).memory
            resident.fail(
                ServiceUnavailable(
                    f"it needs about {need // MIB} MiB, of max_models_memory={int(self.budget)} "
                    f"{self._used() // MIB} MiB are used, and no other model could be parked"
                ),
                LOOKS,
            )

    async def measure(self) -> None:
        """Measures those that have loaded, and now and then all; parks models if some have grown."""
        now = self.clock()
        if is_due := now - self._measured_at >= MEASURES:
            self._measured_at = now
        loaded = [each for each in self.residents if each.state == "loaded"]
        chosen = [each for each in loaded if is_due or each in self._unmeasured]
        fresh, self._unmeasured = self._unmeasured, set()
        if not chosen:
            return
        pids = [[pid for worker in each.pool.workers if (pid := worker.pid) > 0] for each in chosen]
        sizes = await asyncio.to_thread(lambda: [self._memory_of(group) for group in pids])
        for resident, size in zip(chosen, sizes, strict=True):
            if size and resident.state == "loaded":
                resident.memory = size
                if resident in fresh or size > self.need_of(resident).memory:
                    self._needs.learn(resident.key, Need(size, resident.load_seconds))
        await asyncio.to_thread(self._needs.save)
        self._shrink()

    def _shrink(self) -> None:
        """Parks models if those that serve have grown above the budget."""
        excess = self._used() - self._freed() - self.budget
        if excess > 0:
            self._make_room(min(excess, sum(each.size for each in self._candidates())))

    # -- placing

    def place(self) -> None:
        """Starts what requests wait for and what fits, the most valuable first; makes room for others."""
        waiting = [each for each in self.residents if each.waiting_since is not None]
        for resident in sorted(waiting, key=self.value_of, reverse=True):
            need = self.need_of(resident).memory
            if need > self.budget:
                text = f"it needs about {need // MIB} MiB, max_models_memory={int(self.budget)} is less"
                resident.fail(TooLarge(text))
                continue
            missing = self._used() + need - self.budget
            if missing <= 0:
                _log.info("Model %s %s is loaded for a request, %d MiB", *_named(resident), need // MIB)
                resident.start()
            elif missing > self._freed():
                self._make_room(missing - self._freed())

    def _make_room(self, needed: float) -> None:
        for each in choose(self._candidates(), needed) or ():
            assert isinstance(each.key, Resident)  # noqa: S101 - as made below
            self._policy.parked(each.value)
            self.park(each.key, MEMORY)

    def _candidates(self) -> list[Candidate]:
        """The models that may be parked."""
        now = self.clock()
        return [
            Candidate(each, self.value_of(each), self._occupied(each))
            for each in self.residents
            if each.may_park and now - each.loaded_at >= MIN_RESIDENCE
        ]

    # -- what they need and have

    def need_of(self, resident: Resident) -> Need:
        """What it needs: as learned, else an estimate."""
        spec = resident.pool.crew.spec
        return self._needs.get(resident.key) or Need(BASE + spec.files, 0.0)

    def value_of(self, resident: Resident) -> float:
        """What it is worth to have it loaded."""
        need = self.need_of(resident)
        return self._policy.value(resident.key, max(0.1, need.seconds), need.memory, self.clock())

    def next_to_park(self) -> Resident | None:
        """The least valuable of those that may be parked."""
        return min((each for each in self.residents if each.may_park), key=self.value_of, default=None)

    def _occupied(self, resident: Resident) -> int:
        return resident.memory or self.need_of(resident).memory

    def _used(self) -> int:
        """Bytes of all that are loaded, are loading, or have not ended yet."""
        return sum(self._occupied(each) for each in self.residents if each.pool.workers or each.is_leaving)

    def _freed(self) -> int:
        """Bytes of those that are ending."""
        return sum(self._occupied(each) for each in self.residents if each.is_leaving)

    def describe(self) -> dict[str, Any]:
        """Budget, use, and the models by state."""
        states: dict[str, list[str]] = {}
        for each in self.residents:
            states.setdefault(each.state, []).append(" ".join(_named(each)))
        coming = self.next_to_park()
        return {
            "budget": int(self.budget),
            "used": self._used(),
            "models": states,
            "nextToPark": None if coming is None else " ".join(_named(coming)),
        }


def _named(resident: Resident) -> tuple[str, str]:
    return resident.model.name, resident.model.version
