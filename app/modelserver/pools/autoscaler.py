"""Looks at the pools that are scaled by load, and does for each what its :class:`Scaler` decides.

One timer serves all of them, and there is none where no pool asks for it. Requests pay nothing: what is
looked at is there anyway. Decided here, where no source says:

* The bounds are the operator's: what scaling by hand sets counts from then on, and with equal bounds nothing
  is done. From 0 workers nothing is started.
* A worker that goes finishes what it has, as in scaling by hand; the newest goes first.
* A worker that cannot load its model goes again, as long as there are more than ``minWorkers``; the others
  are left to their supervision.
* Memory: each worker is taken for what loading it may need (:func:`~modelserver.pools.gate.need_of`) or
  for what the largest of its kind occupies, whatever is more, and ``RESERVE`` stays free. On a GPU, of which
  one worker is added at a time, it is what those of its kind occupy there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from modelserver.pools.scaling import (
    MEMORY,
    START_FAILED,
    Decision,
    PoolScaling,
    Sample,
    ScaleEvent,
    ScalingRule,
)
from modelserver.pools.spec import WorkerState
from modelserver.resources import resident_bytes
from modelserver.telemetry.system import GpuMemory, gpu_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.pools.gate import StartGate
    from modelserver.pools.pool import Pool
    from modelserver.pools.worker import Worker


_log = logging.getLogger("modelserver.workers")

# Bytes that are left to everybody else; below SHORTAGE workers are taken away.
RESERVE = 512 << 20
SHORTAGE = 128 << 20
GPU_RESERVE = 512 << 20
# Seconds that a look at the memory counts while nobody asks for more.
STALE = 2.0
# Seconds after which it is said again that workers are wished for and cannot be had.
REMIND = 60.0


class Autoscaler:
    """Scales the pools that it is told of.

    Args:
        gpu_memory: reads a GPU by its index; None where it cannot be read.
        resident: the bytes that a process occupies.
    """

    def __init__(
        self,
        gpu_memory: Callable[[int], GpuMemory | None] = gpu_memory,
        resident: Callable[[int], int] = resident_bytes,
    ) -> None:
        self._gpu_memory = gpu_memory
        self._resident = resident
        self._pools: WeakSet[Pool] = WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        # When memory was looked at last, and what was free.
        self._read: WeakKeyDictionary[StartGate, tuple[float, float]] = WeakKeyDictionary()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to look at, and no timer."""
        return self._timer is None

    def follow(self, pool: Pool, rule: ScalingRule | None) -> None:
        """Scales the pool by this rule from now on; None: no more. Its workers stay as they are.

        What is known of the pool is kept where only the rule changes.
        """
        before = pool.autoscaling
        if rule is None:
            self._pools.discard(pool)
            if before is not None:
                pool.autoscaling = None
                pool.metrics.wished(None)
        elif before is None:
            pool.autoscaling = PoolScaling(rule)
            self._pools.add(pool)
        else:
            before.scaler.rule = rule
        self._arm()

    def _arm(self) -> None:
        """Sleeps until the next look is due, or for good."""
        rules = [pool.autoscaling.rule for pool in self._pools if pool.autoscaling is not None]
        if rules and self._timer is None:
            pause = min(rule.every for rule in rules)
            self._timer = asyncio.get_running_loop().call_later(pause, self._tick)
        elif not rules and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self.look(time.monotonic())
        self._arm()

    def look(self, now: float) -> None:
        """Looks at every pool whose turn it is; ``now`` is the time of the clock that requests arrive by."""
        for pool in list(self._pools):
            if pool.closing:
                self.follow(pool, None)
                continue
            try:
                self._look_at(pool, now)
            except Exception:  # noqa: BLE001 - see below
                # The others, and the next look, may do better.
                _log.exception("Autoscaling %s failed", pool.label)

    def _look_at(self, pool: Pool, now: float) -> None:
        scaling = pool.autoscaling
        if scaling is None or now < scaling.due:
            return
        # A little early is better than a whole tick late.
        scaling.due = now + 0.9 * scaling.rule.every
        self._take_back_failed(pool, scaling, now)
        sample = sample_of(pool, now)
        if pool.min_workers < pool.max_workers:
            waits = sample.wait > scaling.rule.target_wait
            room = self._room(pool, self._free(pool.spec.gate, now, exactly=waits), measure=waits)
            sample = Sample(now, sample.wait, sample.busy, sample.ready, sample.loading, sample.failed, room)
        decision = scaling.scaler.decide(sample, pool.min_workers, pool.max_workers)
        scaling.sample, scaling.decision = sample, decision
        pool.metrics.wished(decision.wish)
        before = sample.ready + sample.loading
        if decision.workers != before:
            # Those that were given up keep their places in the list.
            scaling.starting += pool.resize(decision.workers + sample.failed)
            self._read.pop(pool.spec.gate, None)
            _changed(pool, scaling, before, decision.workers, decision.reason)
        elif decision.wish > before:
            _remind(pool, scaling, decision, now)

    def _take_back_failed(self, pool: Pool, scaling: PoolScaling, now: float) -> None:
        """Lets those go that were started here and could not load."""
        waiting = []
        for worker in scaling.starting:
            if not worker.first_load.done():
                waiting.append(worker)
            elif _failed(worker) and worker in pool.workers and len(pool.workers) > pool.min_workers:
                before, reason = len(pool.workers), worker.failure
                pool.dismiss(worker)
                scaling.scaler.start_failed(now)
                _changed(pool, scaling, before, before - 1, START_FAILED, reason)
        scaling.starting = waiting

    # -- memory

    def _free(self, gate: StartGate, now: float, *, exactly: bool) -> float:
        """Bytes that can be had, now or a moment ago: to ask the system takes its time."""
        read_at, free = self._read.get(gate, (-math.inf, 0.0))
        if now - read_at > (0.0 if exactly else STALE):
            free = gate.free()
            self._read[gate] = now, free
        return free

    def _room(self, pool: Pool, free: float, *, measure: bool) -> float:
        """For how many further workers there is memory. ``measure``: look what the present ones occupy."""
        if free < SHORTAGE:
            return -1.0
        spec, need = pool.spec, float(pool.spec.need)
        if measure:
            processes = 1 if spec.ranks is None else max(1, spec.ranks.processes)
            occupied = (self._resident(worker.pid) for worker in pool.workers)
            need = max(need, processes * max(occupied, default=0))
        room = max(0.0, (free - RESERVE) // need)
        return min(room, self._gpu_room(pool)) if measure else room

    def _gpu_room(self, pool: Pool) -> float:
        """Whether the GPUs of the next worker have memory for it: 1 or 0, or no matter."""
        device = pool.devices.peek()
        if device is None:
            return math.inf
        groups = {} if pool.spec.ranks is None else pool.spec.ranks.groups
        here = [(w, groups.get(w.gpu_id, (w.gpu_id,))) for w in pool.workers if w.gpu_id is not None]
        coming = groups.get(device, (device,))
        memory = {gpu: self._gpu_memory(gpu) for gpu in {*coming, *(gpu for _, gpus in here for gpu in gpus)}}
        needs = [
            # In a container processes may have other ids: then a worker's share of all that is used.
            reading.by_process.get(worker.pid, reading.used / sum(gpu in gpus for _, gpus in here))
            for worker, gpus in here
            for gpu in gpus
            if (reading := memory[gpu]) is not None
        ]
        free = [reading.free for gpu in coming if (reading := memory[gpu]) is not None]
        if not needs or not free:
            return math.inf
        return 1.0 if min(free) >= max(needs) + GPU_RESERVE else 0.0


def sample_of(pool: Pool, now: float) -> Sample:
    """What a pool looks like; its room is not looked at."""
    ready = loading = failed = 0
    busy, free, oldest = 0.0, False, pool.queue.oldest()
    concurrency = pool.spec.concurrency
    for worker in pool.workers:
        if worker.state is WorkerState.FAILED:
            failed += 1
        elif worker.state is not WorkerState.READY:
            loading += 1
        else:
            ready += 1
            batches = worker.in_flight
            if concurrency:
                busy += len(batches) / concurrency
                free = free or worker.has_room
            else:
                busy += bool(batches)
                free = free or not batches
                # Those behind the first wait at the worker instead of in the queue.
                if len(batches) > 1:
                    oldest = min(oldest, batches[1].parcels[0].request.arrived)
    return Sample(now, _wait(pool, now, oldest, free=free), busy, ready, loading, failed)


def _wait(pool: Pool, now: float, oldest: float, *, free: bool) -> float:
    """While a worker is free, what waits does so for its batch; a window is waited for in any case."""
    if free:
        return 0.0
    if pool.limits.tickets:
        return math.inf
    on_purpose = pool.limits.max_delay if pool.queue.policy.name == "window" else 0.0
    return max(0.0, now - oldest - on_purpose)


def _failed(worker: Worker) -> bool:
    """Whether it could not load its model when it was started."""
    return not worker.first_load.cancelled() and worker.first_load.exception() is not None


def _changed(  # noqa: PLR0917 - one line of the log has it all
    pool: Pool, scaling: PoolScaling, before: int, after: int, reason: str, failure: str = ""
) -> None:
    scaling.event = ScaleEvent(time.time(), before, after, reason)
    pool.metrics.scaled("up" if after > before else "down", reason)
    _log.info(
        "Autoscaling %s: %d -> %d workers (%s)%s",
        *(pool.label, before, after, reason, f": {failure}" if failure else _seen(scaling)),
    )


def _remind(pool: Pool, scaling: PoolScaling, decision: Decision, now: float) -> None:
    """Says now and then that more workers are wished for than can be had."""
    if decision.reason not in {MEMORY, START_FAILED} or now < scaling.reminded + REMIND:
        return
    scaling.reminded = now
    _log.warning(
        "Autoscaling %s: %d workers stay, %d are wished for (%s)%s",
        *(pool.label, decision.workers, decision.wish, decision.reason, _seen(scaling)),
    )


def _seen(scaling: PoolScaling) -> str:
    sample = scaling.sample
    if sample is None:
        return ""
    waits = "" if math.isinf(sample.wait) else f"waited {sample.wait * 1000:.0f} ms, "
    target = scaling.rule.target_wait * 1000
    return f": {waits}target {target:.0f} ms, busy {sample.busy:.1f} of {sample.ready} workers"
