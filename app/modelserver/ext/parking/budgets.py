"""The memory that models on demand may have together: the machine's, and that of each GPU."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from modelserver.engine.telemetry.gpus import Gpus
from modelserver.ext.parking.memory import gpus_of, workers_by_gpu
from modelserver.ext.parking.needs import Need, Needs
from modelserver.ext.parking.policy import ModelValues

if TYPE_CHECKING:
    from collections import Counter

    from modelserver.ext.parking.resident import Resident

# Bytes of a process beside its model's files, until it has been measured: on the machine, and on a GPU.
BASE = 64 << 20
GPU_BASE = 512 << 20
# The share of the free memory that all may have by default.
SHARE = 0.9
MIB = 1 << 20


class Budget:
    """``limit`` bytes of a GPU, or of the machine, and what models are worth there."""

    def __init__(self, limit: float, gpu: int | None = None) -> None:
        self.limit = limit
        self.gpu = gpu
        self.policy = ModelValues()

    def __str__(self) -> str:
        """The setting and its value, for messages."""
        if self.gpu is None:
            return f"max_models_memory={int(self.limit)}"
        return f"max_device_memory={int(self.limit)} of GPU {self.gpu}"


class Budgets:
    """The budgets, and what models need and have of each.

    ``machine`` and ``device`` are the limits, 0 for a share of what is free when the first model that may use
    such memory is added. ``gpus`` reads the GPUs.
    """

    def __init__(self, machine: float, device: float, needs: Needs, gpus: Gpus) -> None:
        self.machine = Budget(machine)
        self.devices: dict[int, Budget] = {}
        self.needs = needs
        self._device = device
        self._gpus = gpus
        self._unread: set[int] = set()

    def of(self, resident: Resident) -> list[Budget]:
        """Returns the budgets from which the model needs memory, the scarcest first.

        A model whose workers run on other machines needs none: its cluster says whether there is room.
        """
        spec = resident.pool.crew.spec
        if spec.launcher is not None:
            return []
        if not self.machine.limit:
            self.machine.limit = SHARE * spec.gate.free()
        return [*map(self._of_gpu, gpus_of(resident.pool)), self.machine]

    def _of_gpu(self, gpu: int) -> Budget:
        budget = self.devices.get(gpu)
        if budget is None:
            budget = self.devices[gpu] = Budget(self._device or math.inf, gpu)
            if not self._device:
                self._unread.add(gpu)
        return budget

    def change(self, machine: int | None = None, device: int | None = None) -> None:
        """Sets the limit of the machine, and that of every GPU; None leaves it."""
        self.machine.limit = machine or self.machine.limit
        if device:
            self._device = device
            self._unread.clear()
            for budget in self.devices.values():
                budget.limit = device

    async def read_gpus(self, *, always: bool = True) -> None:
        """Reads all GPUs, or only if there are new ones without a limit; they have none if that fails."""
        if not always and not self._unread:
            return
        await self._gpus.renew()
        for gpu in self._unread:
            if (memory := self._gpus.memory(gpu)) is not None:
                self.devices[gpu].limit = SHARE * memory.free
        self._unread.clear()

    def all(self) -> list[Budget]:
        return [self.machine, *self.devices.values()]

    # -- what models need and have

    def need_of(self, resident: Resident) -> Need:
        """What a worker needs: as learned, else an estimate by its files, which are in memory once."""
        spec = resident.pool.crew.spec
        ranks = spec.ranks
        processes = 1 if ranks is None else max(1, ranks.processes)
        need = self.needs.get(_content_of(resident)) or Need(processes * BASE + spec.files, 0.0)
        if need.device is None and gpus_of(resident.pool):
            share = 1 if ranks is None else len(next(iter(ranks.groups.values()), (0,)))
            need = Need(need.memory, need.seconds, GPU_BASE + spec.files // share)
        return need

    def learn(self, resident: Resident, need: Need) -> None:
        """A worker needs that, until it is measured again or has other files."""
        self.needs.learn(_content_of(resident), need)

    def need(self, resident: Resident, budget: Budget) -> int:
        """Bytes that its workers need, or all that loading it starts."""
        need, pool = self.need_of(resident), resident.pool
        if budget.gpu is not None:
            return (need.device or 0) * workers_by_gpu(pool)[budget.gpu]
        return need.memory * max(1, pool.min_workers, len(pool.workers))

    def occupied(self, resident: Resident, budget: Budget) -> int:
        """Bytes that it has, or needs until that is measured, of a budget that it needs memory of."""
        has = resident.memory if budget.gpu is None else resident.device_memory.get(budget.gpu, 0)
        need = self.need(resident, budget)
        # Of several workers, some may not be measured yet.
        return max(has, need) if len(resident.pool.workers) > 1 else has or need

    def room(self, resident: Resident, used: Counter[Budget]) -> float:
        """For how many more workers there is memory beside what is used; below 0: that is too much."""
        need = self.need_of(resident)
        needs = {self.machine: need.memory}
        if need.device:
            needs.update(dict.fromkeys(map(self._of_gpu, gpus_of(resident.pool, more=True)), need.device))
        return min((budget.limit - used[budget]) / max(1, size) for budget, size in needs.items())

    def on_gpus(self, resident: Resident, pids: Collection[int]) -> dict[int, int]:
        """Bytes that its processes had on each GPU at the last reading, as far as the driver says."""
        sizes = dict.fromkeys(gpus_of(resident.pool), 0)
        for gpu in sizes:
            if (memory := self._gpus.memory(gpu)) is not None:
                sizes[gpu] = sum(memory.by_process.get(pid, 0) for pid in pids)
        return {gpu: size for gpu, size in sizes.items() if size}

    # -- what they are worth

    def noted(self, resident: Resident, requests: int, now: float) -> None:
        """It got so many requests."""
        for budget in self.of(resident) or [self.machine]:
            budget.policy.used(resident.key, requests, now)

    def forget(self, resident: Resident) -> None:
        for budget in self.all():
            budget.policy.forget(resident.key)

    def value(self, resident: Resident, budget: Budget, now: float, coming: float = 0.0) -> float:
        """What it is worth to have it loaded; ``coming`` requests are expected."""
        size, seconds = self.occupied(resident, budget), max(0.1, self.need_of(resident).seconds)
        return budget.policy.value(resident.key, seconds, size, now, coming)


def _content_of(resident: Resident) -> str:
    """Its key, with the size of its files: another archive of the same name and version has other needs."""
    return f"{resident.key}/{resident.pool.crew.spec.files}"
