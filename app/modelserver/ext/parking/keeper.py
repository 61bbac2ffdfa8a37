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
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from modelserver.engine.pools.worker import Worker
from modelserver.engine.telemetry.gpus import Gpus
from modelserver.errors import ModelServerError, ServiceUnavailable
from modelserver.ext.parking.budgets import MIB, Budget, Budgets
from modelserver.ext.parking.history import History, recent_uses
from modelserver.ext.parking.machines import guest_of, shared
from modelserver.ext.parking.memory import footprint, gpus_of, is_leaving, pids_of, workers_by_gpu
from modelserver.ext.parking.meters import ParkingMeters
from modelserver.ext.parking.needs import Need, Needs
from modelserver.ext.parking.prewarming import EVERY, Prewarming, has_habits, is_over
from modelserver.ext.parking.resident import IDLE, MEMORY, Resident, TooLarge, refusal_of
from modelserver.ext.parking.room import Occupancy, Room
from modelserver.extension import Host
from modelserver.models.version import ModelVersion

_log = logging.getLogger("modelserver.models")

# Seconds between looks at all, and between measurements.
LOOKS = 1.0
MEASURES = 10.0
# Seconds after which a request's turn no longer depends on what its model is worth.
PATIENCE = 5.0
# Models whose metrics are shown at most, unless more are loaded.
MOST_VISIBLE = 200


class Keeper:
    """Loads and parks the versions that :meth:`keep` was called with.

    ``history`` has the uses of models before; ``measure`` finds the descendants and the memory of processes.
    """

    def __init__(
        self,
        budgets: Budgets,
        history: History,
        meters: ParkingMeters,
        *,
        measure: Callable[[Iterable[int]], tuple[list[int], int]] = footprint,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budgets = budgets
        self.clock = clock
        self.residents: list[Resident] = []
        self._meters = meters
        self._measure_processes = measure
        self.prewarming = Prewarming(budgets, meters, history)
        self._event = asyncio.Event()
        # In order: models that changed since the last look, models of the last look, models that are not
        # parked, with visible metrics, that are loaded ahead of time; and the models by key.
        self._changed: dict[Resident, None] = {}
        self._looked: dict[Resident, None] = {}
        self._active: dict[Resident, None] = {}
        self._visible: dict[Resident, None] = {}
        self._habitual: dict[Resident, None] = {}
        self._by_key: dict[str, Resident] = {}
        self._occupancy = Occupancy(budgets)
        # Whether the last look was at all that is not parked; whether a model waits for the memory of workers
        # that have not ended yet.
        self._is_due = self._is_promised = False
        self._looked_at = -math.inf
        self._unmeasured: set[Resident] = set()
        self._measured_at = -math.inf
        self._measuring: asyncio.Task[None] | None = None

    def keep(self, model: ModelVersion) -> None:
        """Loads the version on demand from now on."""
        resident = Resident(self, model)
        # From the first model on there are budgets.
        self.budgets.of(resident)
        crew = model.pool.crew
        crew.on_demand = resident
        spec = shared(self, resident, crew.spec)
        worth, room = partial(self.value_of, resident), partial(self._room_for, resident)
        crew.spec = replace(spec, worth=worth, room=room, shortage=partial(self.shortage_of, resident))
        self.residents.append(resident)
        if has_habits(resident):
            self._habitual[resident] = None
            recent_uses(model, self.clock())
        # With a thousand models, only the metrics of models in use are shown: also of one that is replaced.
        if self._by_key.get(resident.key) not in self._visible:
            model.metrics.series.hide()
        self._by_key[resident.key] = resident

    def soon(self, resident: Resident) -> None:
        """Looks at it in the next turn of the loop: it may be placed, or its memory be free."""
        self._changed[resident] = None
        self._event.set()

    async def run(self) -> None:
        """Runs while the server listens."""
        await asyncio.to_thread(self.budgets.needs.load)
        await asyncio.to_thread(self.prewarming.history.load)
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._event.wait(), self._pause())
            self._event.clear()
            try:
                await self.budgets.read_gpus(always=False)
                self.look()
                self.place()
            except Exception:  # noqa: BLE001 - requests wait for the next look
                _log.exception("Loading models on demand failed")
            is_due = self._unmeasured or is_over(self._measured_at, MEASURES, self.clock())
            if is_due and (self._measuring is None or self._measuring.done()):
                # Requests do not wait for that.
                self._measuring = asyncio.create_task(self.measure())

    def _pause(self) -> float | None:
        """Seconds until the next look; None if there is nothing to look at until something happens."""
        if self._active:
            return LOOKS
        return EVERY if self._habitual else None

    def change(self, machine: int | None, device: int | None) -> None:
        """Sets the budgets, in bytes; models are parked for smaller ones, and loaded into larger ones."""
        self.budgets.change(machine, device)
        _log.info("The budgets are now %s", ", ".join(map(str, self.budgets.all())))
        for resident in self.residents:
            if isinstance(resident.refusal, TooLarge):
                resident.retry_at = self.clock()
        self._occupancy.is_freed = True
        self._event.set()

    # -- events of residents

    def loaded(self, resident: Resident, *, cold: int) -> None:
        """Its workers have loaded, which ``cold`` requests have waited for."""
        self._unmeasured.add(resident)
        self._show(resident)
        self._meters.loaded(resident.model, cold, resident.load_seconds)
        _log.info("Model %s %s is loaded, in %.2f s", *_named(resident), resident.load_seconds)
        self.soon(resident)

    def _show(self, resident: Resident) -> None:
        resident.model.metrics.series.show()
        self._visible[resident] = None

    def _hide(self) -> None:
        """Hides the metrics of the parked models that were used least recently, if too many are visible."""
        if (excess := len(self._visible) - MOST_VISIBLE) > 0:
            parked = [each for each in self._visible if each.state == "parked"]
            for each in sorted(parked, key=lambda each: each.used_at)[:excess]:
                each.model.metrics.series.hide()
                del self._visible[each]

    def failed(self, resident: Resident, error: ModelServerError) -> None:
        """Its workers could not load the model."""
        guest = guest_of(resident)
        if guest is not None and not guest.has_place and self.prewarming.is_ahead(resident):
            # The model has not failed. A request that has come since then loads it again.
            _log.info("Model %s %s is not loaded ahead of time: %s", *_named(resident), error.message)
            resident.pool.crew.resize(0)
            return
        resident.fail(error)
        self._show(resident)
        self._meters.failed(resident.model)
        self.soon(resident)

    def park(self, resident: Resident, reason: str) -> None:
        """Ends its workers; it is loaded again for the next request."""
        resident.end(reason)
        self._meters.parked(resident.model, reason)
        _log.info("Model %s %s is parked (%s)", *_named(resident), reason)

    # -- looking

    def look(self) -> None:
        """Notes what was used, parks what is idle, and refuses what has waited or failed for too long.

        Looks at what has changed, and once a second at everything that is not parked.
        """
        now = self.clock()
        changed, self._changed = self._changed, {}
        self._is_due = is_over(self._looked_at, LOOKS, now)
        if self._is_due:
            self._looked_at = now
            changed = {**self._active, **self._habitual, **changed}
        self._looked = changed
        for resident in changed:
            self._look_at(resident, now)
        for resident in changed:
            timeout = resident.model.options.startup_timeout
            if self._waited(resident) >= timeout:
                _log.warning("Model %s %s has no place: %s", *_named(resident), self._lack_of(resident))
                resident.refuse_late(now - timeout)
        self._hide()

    def _look_at(self, resident: Resident, now: float) -> None:
        pool = resident.pool
        if pool.admission.closing:
            resident.release()
            # What waits is answered first, also if the model has to be loaded for that.
            if not (pool.queue.requests or pool.crew.all()):
                self._forget(resident)
                return
        if requests := resident.count_requests(now):
            self.budgets.noted(resident, requests, now)
        if pool.workers and not any(map(_may_serve, pool.workers)):
            self.failed(resident, ServiceUnavailable(pool.failure or "its workers have failed"))
        idle = now - max(resident.used_at, resident.loaded_at)
        timeout = resident.model.options.values["idle_timeout"]
        if timeout and idle >= timeout and resident.may_park and not self.prewarming.keeps(resident, now):
            self.park(resident, IDLE)
        self.prewarming.look(resident, now)
        self._occupancy.follow(resident)
        self._active.pop(resident, None)
        if resident.state != "parked" or is_leaving(pool):
            self._active[resident] = None

    def _forget(self, resident: Resident) -> None:
        """It is unregistered, or replaced by another of its key."""
        if resident in self.residents:
            self.residents.remove(resident)
        if others := [each for each in self.residents if each.key == resident.key]:
            # Of a version and its replacement, this one is left.
            self._by_key[resident.key] = others[-1]
            if resident in self._visible:
                self._visible[others[-1]] = None
        else:
            self._by_key.pop(resident.key, None)
            self.budgets.forget(resident)
        for each in (self._active, self._visible, self._habitual):
            each.pop(resident, None)
        self._unmeasured.discard(resident)
        self._occupancy.follow(resident)
        self.prewarming.forget(resident)
        # They refer to it: its pool and metrics would stay as a reference cycle, which are collected rarely.
        crew = resident.pool.crew
        crew.on_demand = None
        crew.spec = replace(crew.spec, worth=None, room=None, shortage=lambda: None, launcher=None)

    def shortage_of(self, resident: Resident) -> ModelServerError | None:
        """What requests receive whose time passes while they wait for memory; None: they do not."""
        if resident.waiting_since is not None:
            reason = self._lack_of(resident)
        elif (guest := guest_of(resident)) is None or not (reason := guest.lack):
            return None
        return refusal_of(resident.model.name, ServiceUnavailable, reason, LOOKS)

    def _lack_of(self, resident: Resident) -> str:
        """Why it has not been loaded, in words."""
        room = self._room()
        for budget in room.missing(resident):
            need, used = self.budgets.need(resident, budget), room.used[budget]
            return (
                f"it needs about {need // MIB} MiB, of {budget} {used // MIB} MiB are used, "
                "and no other model could be parked in time"
            )
        return "others were loaded first"

    async def measure(self) -> None:
        """Measures models that have just loaded, and at intervals all; parks models if some have grown."""
        try:
            await self._measure()
        except Exception:  # noqa: BLE001 - the next measurement may succeed
            _log.exception("The memory of models could not be measured")
        self.prewarming.note(self._habitual, self.clock())
        await asyncio.to_thread(self.prewarming.history.save)

    async def close(self) -> None:
        """Stores when models were used until now."""
        self.prewarming.note(self._habitual, self.clock(), always=True)
        await asyncio.to_thread(self.prewarming.history.save)

    async def _measure(self) -> None:
        now = self.clock()
        fresh, self._unmeasured = self._unmeasured, set()
        everything: Iterable[Resident] = fresh
        if is_over(self._measured_at, MEASURES, now):
            self._measured_at = now
            everything = {**self._active, **dict.fromkeys(fresh)}
        chosen = [each for each in everything if each.state == "loaded"]
        if not chosen:
            return
        pids = [pids_of(each.pool) for each in chosen]
        sizes = await asyncio.to_thread(lambda: [*map(self._measure_processes, pids)])
        if any(gpus_of(each.pool) for each in chosen):
            await self.budgets.read_gpus()
        for resident, (family, here) in zip(chosen, sizes, strict=True):
            guest = guest_of(resident)
            size = here if guest is None else guest.measure()
            if size and resident.state == "loaded":
                resident.memory = size
                resident.device_memory = self.budgets.on_gpus(resident, family)
                self._learn(resident, is_fresh=resident in fresh)
                self._occupancy.follow(resident)
            elif guest is not None and resident in fresh:
                # Its machine has not reported yet.
                self._unmeasured.add(resident)
        await asyncio.to_thread(self.budgets.needs.save)
        self._shrink(self._room())

    def _learn(self, resident: Resident, *, is_fresh: bool) -> None:
        """Keeps what a worker has after a load, and whenever it has more than is known."""
        known, pool = self.need_of(resident), resident.pool
        memory = resident.memory // max(1, sum(worker.process is not None for worker in pool.workers))
        # With a GPU that its handler does not use, it needs nothing there; without one that is not known.
        ignores_gpu = any(worker.gpu_id is not None and worker.is_on_cpu for worker in pool.workers)
        workers = workers_by_gpu(pool)
        sizes = (size // max(1, workers[gpu]) for gpu, size in resident.device_memory.items())
        device = max(sizes, default=0 if ignores_gpu else None)
        if is_fresh or memory > known.memory or (device or 0) > (known.device or 0):
            self.budgets.learn(resident, Need(memory, resident.load_seconds or known.seconds, device))

    def _shrink(self, room: Room) -> None:
        """Parks models if all are above a budget: some have grown, or have workers that nothing waited for,
        such as those of a replacement.
        """
        for budget in self.budgets.all():
            if excess := room.excess(budget):
                self._park_for(room.victims({budget: excess + room.leaving[budget]}))

    # -- placing

    def place(self) -> None:
        """Starts what requests wait for and what fits, in turn; makes room for others."""
        room = self._room()
        self._shrink(room)
        # Where nothing has become free, what has waited before waits on.
        is_open = self._is_due or self._is_promised or self._occupancy.is_freed
        looked = self._active if is_open else self._looked
        waiting = [each for each in {**looked, **self._changed} if each.waiting_since is not None]
        self._occupancy.is_freed = self._is_promised = False
        for resident in sorted(waiting, key=self._turn):
            if (refusal := self._too_large(resident)) is not None:
                resident.fail(refusal)
            elif not (missing := room.missing(resident)):
                need = self.need_of(resident).memory
                _log.info("Model %s %s is loaded for a request, %d MiB", *_named(resident), need // MIB)
                resident.start()
                room.take(resident)
            elif (victims := room.victims(missing)) is not None or (
                self._waited(resident) >= PATIENCE and room.will_have(missing)
            ):
                # Until these have ended, nothing of less value may take its place, nor what becomes free for
                # one that has waited for long.
                self._park_for(victims)
                room.take(resident)
                self._is_promised = True
        self.prewarming.place(room, self.clock(), self._park_for)

    def _turn(self, resident: Resident) -> tuple[float, float]:
        """The sort key of waiting models: those that have waited for long first, then the most valuable."""
        if self._waited(resident) >= PATIENCE:
            return -self._waited(resident), 0.0
        return 0.0, -self.value_of(resident)

    def _waited(self, resident: Resident) -> float:
        """Seconds since a request needs workers that have no place yet; 0.0: none does."""
        return 0.0 if resident.waiting_since is None else self.clock() - resident.waiting_since

    def _park_for(self, victims: Iterable[Resident] | None) -> None:
        for each in victims or ():
            self.park(each, MEMORY)

    def _too_large(self, resident: Resident) -> TooLarge | None:
        """The refusal of a model that would not fit if it were alone."""
        for budget in self.budgets.of(resident):
            if (need := self.budgets.need(resident, budget)) > budget.limit:
                return TooLarge(f"it needs about {need // MIB} MiB, {budget} is less")
        return None

    def _room(self) -> Room:
        for each in self._changed:
            self._occupancy.follow(each)
        return Room(self.budgets, self._occupancy, self.clock())

    # -- what they need and have

    def need_of(self, resident: Resident) -> Need:
        """What a worker of it needs: as learned, else an estimate."""
        return self.budgets.need_of(resident)

    def _room_for(self, resident: Resident) -> float:
        """For how many more of its workers there is memory; what is free is for models that wait."""
        room = self.budgets.room(resident, self._room().used)
        is_free = all(each.waiting_since is None for each in {**self._active, **self._changed})
        return room if is_free else min(room, 0.0)

    def value_of(self, resident: Resident) -> float:
        """What it is worth to have it loaded, in the scarcest kind of memory that it needs."""
        budget = next(iter(self.budgets.of(resident)), self.budgets.machine)
        return self.budgets.value(resident, budget, self.clock())

    def describe(self) -> dict[str, Any]:
        """Budget, use, and the models by state."""
        states: dict[str, list[str]] = {}
        for each in self.residents:
            states.setdefault(each.state, []).append(" ".join(_named(each)))
        room = Room(self.budgets, self._occupancy, self.clock(), residence=0.0)
        machine, *devices = (self._described(budget, room) for budget in self.budgets.all())
        coming = machine.pop("nextToPark")
        return {
            **machine,
            "models": states,
            "nextToPark": coming,
            "devices": devices or None,
            "prewarms": self.prewarming.counts,
        }

    def _described(self, budget: Budget, room: Room) -> dict[str, Any]:
        coming = room.next_to_park(budget)
        return {
            **({} if budget.gpu is None else {"gpu": budget.gpu}),
            "budget": None if math.isinf(budget.limit) else int(budget.limit),
            "used": room.used[budget],
            "nextToPark": None if coming is None else " ".join(_named(coming)),
        }


def make_keeper(host: Host) -> Keeper:
    """The keeper of a server, with its metrics."""
    settings, meters = host.settings, ParkingMeters(host.services.metrics)
    budgets = Budgets(settings.max_models_memory, settings.max_device_memory, Needs(), Gpus())
    keeper = Keeper(budgets, History(), meters)
    meters.show(keeper.residents, lambda: budgets.machine.limit)
    return keeper


def _may_serve(worker: Worker) -> bool:
    """Whether requests may wait for it, also while its first process has no machine of a cluster yet."""
    return worker.may_serve or (worker.is_loading and not worker.failures.loads)


def _named(resident: Resident) -> tuple[str, str]:
    return resident.model.name, resident.model.version
