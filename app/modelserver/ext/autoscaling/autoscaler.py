"""Samples the pools with autoscaling, and does for each what its :class:`Scaler` decides.

One timer serves all pools; without any there is none. Requests cost nothing extra, as samples use existing
state. Decisions made here:

* The bounds are the operator's: manual scaling changes them, and with equal bounds nothing is done. From 0
  workers none are started, and the last one of a model that is loaded on demand is not removed here.
* A removed worker finishes its batches, as in manual scaling; the newest is removed first.
* A worker that cannot load its model is removed if there are more than ``minWorkers``; otherwise its
  supervision handles it.
* Memory: a worker counts as much as loading may need (:func:`~modelserver.engine.pools.gate.need_of`) or as
  the largest one of its pool, whichever is more, and ``RESERVE`` stays free. On a GPU, where one worker is
  added at a time, it counts as much as the pool's workers there. Models that are loaded on demand have no
  more workers than their budgets allow.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.worker import Worker
from modelserver.engine.telemetry.gpus import Gpus
from modelserver.engine.telemetry.system import worker_memory
from modelserver.ext.autoscaling.scaling import (
    MEMORY,
    START_FAILED,
    Decision,
    PoolScaling,
    Sample,
    ScaleEvent,
    ScalingRule,
)

_gpus = Gpus()
_log = logging.getLogger("modelserver.workers")

# Bytes to keep free; below SHORTAGE workers are removed.
RESERVE = 512 << 20
SHORTAGE = 128 << 20
GPU_RESERVE = 512 << 20
# Seconds for which a reading of the memory is reused while no workers are needed.
STALE = 2.0
# Seconds between warnings that workers are wanted but cannot be started.
REMIND = 60.0


class Autoscaler:
    """Scales pools.

    ``gpu_memory`` is that of a GPU as of the last reading, which ``renew`` replaces; ``resident`` the bytes
    of a process.
    """

    def __init__(
        self,
        gpu_memory: Callable[[int], Any] = _gpus.memory,
        resident: Callable[[int], int] = worker_memory,
        renew: Callable[[], Awaitable[object]] = _gpus.renew,
    ) -> None:
        self._gpu_memory = gpu_memory
        self._resident = resident
        self._renew = renew
        self._renewing: asyncio.Task[None] | None = None
        self._pools: WeakSet[Pool] = WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        # By the gate that tells what is free: when memory was last read, and what was free.
        self._read: WeakKeyDictionary[object, tuple[float, float]] = WeakKeyDictionary()

    @property
    def idle(self) -> bool:
        """Whether there are no pools, and no timer."""
        return self._timer is None

    def follow(self, pool: Pool, rule: ScalingRule | None) -> None:
        """Scales the pool by this rule; None stops. Its state is kept if only the rule changes."""
        before = _scaling_of(pool)
        if rule is None:
            self._pools.discard(pool)
            if before is not None:
                pool.crew.autoscaling = None
                pool.metrics.workers.set_wish(None)
        elif before is None:
            pool.crew.autoscaling = PoolScaling(rule)
            self._pools.add(pool)
        else:
            before.scaler.rule = rule
        self._arm()

    def _arm(self) -> None:
        """Sets the timer for the next sample, if there are pools."""
        rules = [scaling.rule for pool in self._pools if (scaling := _scaling_of(pool)) is not None]
        if rules and self._timer is None:
            pause = min(rule.every for rule in rules)
            self._timer = asyncio.get_running_loop().call_later(pause, self._tick)
        elif not rules and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if any(pool.crew.devices.peek() is not None for pool in self._pools):
            self._renewing = asyncio.get_running_loop().create_task(self._renew_and_look())
        else:
            self.look(time.monotonic())
            self._arm()

    async def _renew_and_look(self) -> None:
        try:
            await self._renew()
        finally:
            self.look(time.monotonic())
            self._arm()

    def look(self, now: float) -> None:
        """Samples every pool that is due; ``now`` is the time of the clock that stamps requests."""
        for pool in list(self._pools):
            if pool.admission.closing:
                self.follow(pool, None)
                continue
            try:
                self._look_at(pool, now)
            except Exception:  # noqa: BLE001 - the other pools, and the next sample, may succeed
                _log.exception("Autoscaling %s failed", pool.label)

    def _look_at(self, pool: Pool, now: float) -> None:
        scaling = _scaling_of(pool)
        if scaling is None or now < scaling.due or not pool.workers:
            return
        # Slightly early is better than a tick late.
        scaling.due = now + 0.9 * scaling.rule.every
        self._take_back_failed(pool, scaling, now)
        sample = sample_of(pool, now)
        if pool.min_workers < pool.max_workers:
            waits = sample.wait > scaling.rule.target_wait
            room = self._room(pool, self._free(pool, now, exactly=waits), measure=waits)
            sample = replace(sample, room=room)
        decision = scaling.scaler.decide(sample, max(1, pool.min_workers), pool.max_workers)
        scaling.sample, scaling.decision = sample, decision
        pool.metrics.workers.set_wish(decision.wish)
        before = sample.ready + sample.loading
        if decision.workers != before:
            # Failed workers stay in the list.
            scaling.starting += pool.crew.resize(decision.workers + sample.failed)
            self._read.pop(pool.crew.spec.gate, None)
            _changed(pool, scaling, before, decision.workers, decision.reason)
        elif decision.wish > before:
            _remind(pool, scaling, decision, now)

    def _take_back_failed(self, pool: Pool, scaling: PoolScaling, now: float) -> None:
        """Removes workers that were started here and could not load."""
        waiting = []
        for worker in scaling.starting:
            if not worker.first_load.done():
                waiting.append(worker)
            elif _failed(worker) and worker in pool.workers and len(pool.workers) > pool.min_workers:
                before, reason = len(pool.workers), worker.failure
                pool.crew.dismiss(worker)
                scaling.scaler.start_failed(now)
                _changed(pool, scaling, before, before - 1, START_FAILED, reason)
        scaling.starting = waiting

    # -- memory

    def _free(self, pool: Pool, now: float, *, exactly: bool) -> float:
        """Bytes available now, or unless ``exactly`` a moment ago, as reading them takes time."""
        gate = pool.crew.spec.gate
        read_at, free = self._read.get(gate, (-math.inf, 0.0))
        if now - read_at > (0.0 if exactly else STALE):
            free = gate.free()
            self._read[gate] = now, free
        return free

    def _room(self, pool: Pool, free: float, *, measure: bool) -> float:
        """How many more workers fit into memory. ``measure``: also consider the memory of existing ones."""
        spec, need = pool.crew.spec, float(pool.crew.spec.need)
        if spec.launcher is not None:
            # Whether there is room elsewhere turns out when it is asked for.
            return math.inf
        if free < SHORTAGE:
            return -1.0
        if measure:
            processes = 1 if spec.ranks is None else max(1, spec.ranks.processes)
            occupied = (self._resident(worker.pid) for worker in pool.workers)
            need = max(need, processes * max(occupied, default=0))
        room = max(0.0, (free - RESERVE) // need)
        if spec.room is not None:
            room = min(room, spec.room())
        return min(room, self._gpu_room(pool)) if measure else room

    def _gpu_room(self, pool: Pool) -> float:
        """1 if the GPUs of the next worker have memory for it, else 0; infinity if that is unknown."""
        device = pool.crew.devices.peek()
        if device is None:
            return math.inf
        groups = {} if pool.crew.spec.ranks is None else pool.crew.spec.ranks.groups
        here = [(w, groups.get(w.gpu_id, (w.gpu_id,))) for w in pool.workers if w.gpu_id is not None]
        coming = groups.get(device, (device,))
        memory = {gpu: self._gpu_memory(gpu) for gpu in {*coming, *(gpu for _, gpus in here for gpu in gpus)}}
        needs = [
            # In a container process ids may differ: then a worker's share of all used memory.
            reading.by_process.get(worker.pid, reading.used / sum(gpu in gpus for _, gpus in here))
            for worker, gpus in here
            for gpu in gpus
            if (reading := memory[gpu]) is not None
        ]
        free = [reading.free for gpu in coming if (reading := memory[gpu]) is not None]
        if not needs or not free:
            return math.inf
        return 1.0 if min(free) >= max(needs) + GPU_RESERVE else 0.0


def _scaling_of(pool: Pool) -> PoolScaling | None:
    """The state of a pool that is scaled: what :meth:`Autoscaler.follow` has set."""
    return cast("PoolScaling | None", pool.crew.autoscaling)


def sample_of(pool: Pool, now: float) -> Sample:
    """A sample of a pool, without its room."""
    states, busy, free, oldest = pool.statistics(), 0.0, False, pool.queue.oldest()
    for worker in pool.workers:
        if worker.is_ready:
            batches = worker.flights.in_flight
            if concurrency := worker.flights.concurrency:
                busy += len(batches) / concurrency
                free = free or worker.has_room
            else:
                busy += bool(batches)
                free = free or not batches
                # Batches after the first wait at the worker instead of in the queue.
                if len(batches) > 1:
                    oldest = min(oldest, batches[1].parcels[0].request.arrived)
    loading = len(pool.workers) - states.ready - states.failed
    wait = _wait(pool, now, oldest, free=free)
    return Sample(now, wait, busy, states.ready, loading, states.failed)


def _wait(pool: Pool, now: float, oldest: float, *, free: bool) -> float:
    """How long requests have waited for a worker: 0 while one is free, and not counting windows."""
    if free:
        return 0.0
    if pool.limits.tickets:
        return math.inf
    on_purpose = pool.limits.max_delay if pool.queue.policy.name == "window" else 0.0
    return max(0.0, now - oldest - on_purpose)


def _failed(worker: Worker) -> bool:
    """Whether its first load failed."""
    return not worker.first_load.cancelled() and worker.first_load.exception() is not None


def _changed(  # noqa: PLR0917 - one line of the log has it all
    pool: Pool, scaling: PoolScaling, before: int, after: int, reason: str, failure: str = ""
) -> None:
    scaling.event = ScaleEvent(time.time(), before, after, reason)
    pool.metrics.workers.count("scalings_total", "up" if after > before else "down", reason)
    why = f": {failure}" if failure else _seen(scaling)
    _log.info("Autoscaling %s: %d -> %d workers (%s)%s", pool.label, before, after, reason, why)


def _remind(pool: Pool, scaling: PoolScaling, decision: Decision, now: float) -> None:
    """Warns from time to time that more workers are wanted than can be started."""
    if decision.reason not in {MEMORY, START_FAILED} or now < scaling.reminded + REMIND:
        return
    scaling.reminded = now
    text = "Autoscaling %s: keeping %d workers, %d are wanted (%s)%s"
    _log.warning(text, pool.label, decision.workers, decision.wish, decision.reason, _seen(scaling))


def _seen(scaling: PoolScaling) -> str:
    sample = scaling.sample
    if sample is None:
        return ""
    waits = "" if math.isinf(sample.wait) else f"waited {sample.wait * 1000:.0f} ms, "
    target = scaling.rule.target_wait * 1000
    return f": {waits}target {target:.0f} ms, busy {sample.busy:.1f} of {sample.ready} workers"
