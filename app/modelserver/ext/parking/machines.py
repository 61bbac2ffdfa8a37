"""Models on demand whose workers are on other machines: idle ones are parked where another has no room.

Only the cluster knows what is free on its machines, since it counts the resources that workers reserve.
So the workers of a model start at once. If the cluster finds no place for them, it reports the machines that
could run them but lack something; the least valuable models are parked on the machine where that costs least.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from modelserver.engine.demand import Demand
from modelserver.engine.pools.spec import WorkerSpec
from modelserver.engine.pools.worker import Worker
from modelserver.ext.parking.budgets import MIB
from modelserver.ext.parking.prewarming import Prewarming
from modelserver.ext.parking.resident import MEMORY, Resident, ResidentOwner
from modelserver.ext.parking.room import MIN_RESIDENCE

# Seconds until a cluster shows as free what a parked model had.
SETTLES = 5.0
# The least that Ray counts of a resource.
LEAST = 1e-4


class RemoteModelOwner(ResidentOwner, Protocol):
    """Computes the worth of models, too; ``residents`` are all models on demand."""

    prewarming: Prewarming
    residents: list[Resident]

    def value_of(self, resident: Resident) -> float: ...


@runtime_checkable
class SharedLauncher(Protocol):
    """Starts workers on machines that models share, for ``guest``, each with ``demand``."""

    demand: Demand
    guest: Any

    def sharing(self, guest: RemoteModel) -> Any:
        """Returns the same for another guest."""


class RemoteModel:
    """A model on the machines of a cluster. ``has_place`` is false once a worker has found none."""

    def __init__(self, owner: RemoteModelOwner, resident: Resident, demand: Demand) -> None:
        self.resident = resident
        self.has_place = True
        self._owner = owner
        self._demand = demand
        # What each worker reserves, and what machines lacked at the last report; the machine that it was last
        # parked on, how much that frees, and when.
        self._amounts: dict[str, float] = {}
        self._lacks: Mapping[str, Mapping[str, float]] = {}
        self._left: tuple[str, Counter[str], float] = ("", Counter(), -math.inf)
        # Reports of each machine, by the identity of the worker's, before the model was first measured.
        self._reports: dict[int, int] = {}

    def reserve(self) -> int:
        """Returns the bytes that the next worker reserves: those of its resources, else what it needs."""
        demand = self._demand
        memory = demand.memory or self._owner.need_of(self.resident).memory
        self._lacks, self.has_place = {}, True
        self._amounts = {"CPU": demand.num_cpus, "GPU": demand.num_gpus, "memory": memory, **demand.custom}
        return memory

    def unplaced(self) -> None:
        self.has_place = False

    def make_room(self, lacks: Mapping[str, Mapping[str, float]]) -> None:
        """Parks models of one machine, if that is enough; ``lacks`` are amounts by machine."""
        self._lacks = lacks
        plans = ((node, self._victims(node, amounts)) for node, amounts in lacks.items())
        if possible := [(node, victims) for node, victims in plans if victims is not None]:
            node, victims = min(possible, key=lambda plan: sum(each.value for each in plan[1]))
            for each in victims:
                each.leave(node)

    @property
    def lack(self) -> str:
        """Why it has no place yet, in words; empty if it has one, or no machine lacks anything."""
        if not self._lacks or any(each.node for each in self.resident.pool.workers):
            return ""
        node, amounts = next(iter(self._lacks.items()))
        words = (
            f"{amount / MIB:.0f} MiB of memory" if name == "memory" else f"{amount:g} {name}"
            for name, amount in amounts.items()
        )
        return f"node {node} lacks {' and '.join(words)}, and no other model could be parked in time"

    @property
    def value(self) -> float:
        """What it is worth to have the model loaded."""
        return self._owner.value_of(self.resident)

    def leave(self, node: str) -> None:
        """It is parked, for others on the machine."""
        self._left = (node, self.amounts(node), self._owner.clock())
        self._owner.park(self.resident, MEMORY)

    def amounts(self, node: str) -> Counter[str]:
        """What its workers have on the machine."""
        return self._amounts_of(node, self.resident.pool.workers)

    def leaving(self, node: str) -> Counter[str]:
        """What becomes free there."""
        left, amounts, at = self._left
        if left == node and self._owner.clock() - at < SETTLES:
            return amounts
        return self._amounts_of(node, self.resident.pool.crew.leaving)

    def _amounts_of(self, node: str, workers: Iterable[Worker]) -> Counter[str]:
        count = sum(each.node is not None and each.node.name == node for each in workers)
        return Counter({name: count * amount for name, amount in self._amounts.items() if count * amount})

    def measure(self) -> int:
        """Returns the bytes of its workers that machines have reported since the first call after a load; 0:
        there is no report yet. Reports from before may be of processes that had hardly started.
        """
        nodes = [node for each in self.resident.pool.workers if (node := each.node) is not None]
        self._reports = {id(node): self._reports.get(id(node), node.reports) for node in nodes}
        is_current = all(node.reports > self._reports[id(node)] for node in nodes)
        return sum(node.of_family for node in nodes) if is_current else 0

    @property
    def may_leave(self) -> bool:
        age = self._owner.clock() - self.resident.loaded_at
        return self.resident.may_park and age >= MIN_RESIDENCE

    def _victims(self, node: str, lacks: Mapping[str, float]) -> list[RemoteModel] | None:
        """What to park there beside what leaves; None if all together have too little."""
        needed = Counter(lacks)
        guests = [each for each in map(guest_of, self._owner.residents) if each is not None]
        for each in guests:
            needed.subtract(each.leaving(node))
        limit = self._owner.prewarming.limit_of(self.resident, self._owner.clock())
        chosen: list[RemoteModel] = []
        parkable = (each for each in guests if each.may_leave and each.value < limit)
        for each in sorted(parkable, key=lambda guest: guest.value):
            amounts = each.amounts(node)
            if any(needed[name] > LEAST for name in amounts):
                chosen.append(each)
                needed.subtract(amounts)
        if any(needed[name] > LEAST for name in lacks):
            return None
        # A large one may have made smaller ones of less value unnecessary.
        for each in reversed(chosen[:]):
            amounts = each.amounts(node)
            if all(needed[name] + amounts[name] <= LEAST for name in lacks):
                chosen.remove(each)
                needed.update(amounts)
        return chosen


def guest_of(resident: Resident) -> RemoteModel | None:
    """The guest that the model's launcher has."""
    launcher = resident.pool.crew.spec.launcher
    guest = launcher.guest if isinstance(launcher, SharedLauncher) else None
    return guest if isinstance(guest, RemoteModel) else None


def shared(owner: RemoteModelOwner, resident: Resident, spec: WorkerSpec) -> WorkerSpec:
    """The spec with the model as a guest of its launcher, if that starts workers on a cluster."""
    launcher = spec.launcher
    if not isinstance(launcher, SharedLauncher):
        return spec
    return replace(spec, launcher=launcher.sharing(RemoteModel(owner, resident, launcher.demand)))
