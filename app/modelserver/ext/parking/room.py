"""Who has how much memory, and what is to be parked for others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property, partial

from modelserver.ext.parking.budgets import Budget, Budgets
from modelserver.ext.parking.memory import is_leaving
from modelserver.ext.parking.policy import Candidate, choose
from modelserver.ext.parking.resident import Resident

# Seconds that a model stays loaded at least.
MIN_RESIDENCE = 10.0


class Occupancy:
    """What models have of each budget: what is loaded, is loading, or has not ended yet.

    ``used`` are bytes by budget, ``leaving`` those of what ends. ``is_freed``: some became less since that
    was reset.
    """

    def __init__(self, budgets: Budgets) -> None:
        self.used: Counter[Budget] = Counter()
        self.leaving: Counter[Budget] = Counter()
        self.is_freed = False
        self._budgets = budgets
        self._sizes: dict[Resident, dict[Budget, int]] = {}
        self._leaving: dict[Resident, dict[Budget, int]] = {}

    def __iter__(self) -> Iterator[tuple[Resident, dict[Budget, int]]]:
        """The models that occupy memory, with their bytes, without models that are leaving."""
        return ((each, sizes) for each, sizes in self._sizes.items() if each not in self._leaving)

    def follow(self, resident: Resident) -> None:
        """Something of the model has changed: counts what it has now."""
        before = self._sizes.pop(resident, {})
        sizes: dict[Budget, int] = {}
        self.used.subtract(before)
        self.leaving.subtract(self._leaving.pop(resident, {}))
        leaves = is_leaving(resident.pool)
        if leaves or resident.pool.workers:
            budgets = self._budgets
            # Until its workers have ended, they have what all of them had.
            had = before if leaves else {}
            sizes = had or {each: budgets.occupied(resident, each) for each in budgets.of(resident)}
            self._sizes[resident] = sizes
            self.used.update(sizes)
            if leaves:
                self._leaving[resident] = sizes
                self.leaving.update(sizes)
        if any(size > sizes.get(each, 0) for each, size in before.items()):
            self.is_freed = True


class Idle:
    """The models that nobody uses now: those that may be parked, by budget, with the bytes of all of them,
    and the bytes of those that were loaded less than ``residence`` seconds ago.
    """

    def __init__(self, budgets: Budgets, occupancy: Occupancy, now: float, residence: float) -> None:
        self.parkable: defaultdict[Budget, dict[Resident, Candidate]] = defaultdict(dict)
        self.sizes: Counter[Budget] = Counter()
        self.young: Counter[Budget] = Counter()
        for resident, sizes in occupancy:
            if not resident.may_park:
                continue
            if now - resident.loaded_at < residence:
                self.young.update(sizes)
                continue
            self.sizes.update(sizes)
            for budget, size in sizes.items():
                value = budgets.value(resident, budget, now)
                self.parkable[budget][resident] = Candidate(resident, value, size)

    def remove(self, resident: Resident) -> Counter[Budget]:
        """It is parked; returns its bytes."""
        sizes: Counter[Budget] = Counter()
        for budget, candidates in self.parkable.items():
            if (candidate := candidates.pop(resident, None)) is not None:
                sizes[budget] = int(candidate.size)
        self.sizes.subtract(sizes)
        return sizes


class Room:
    """One look at who has what at a time; it follows what is decided from then on.

    Loaded models are only looked at if something lacks memory. ``residence``: seconds since its load before
    which a model is not parked.
    """

    def __init__(
        self, budgets: Budgets, occupancy: Occupancy, now: float, residence: float = MIN_RESIDENCE
    ) -> None:
        self.used = occupancy.used.copy()
        self.leaving = occupancy.leaving.copy()
        self._budgets = budgets
        self._look = partial(Idle, budgets, occupancy, now, residence)

    @cached_property
    def _idle(self) -> Idle:
        return self._look()

    def missing(self, resident: Resident) -> dict[Budget, float]:
        """Bytes that it lacks beside all others, by budget."""
        lacks = {
            budget: self.used[budget] + self._budgets.need(resident, budget) - budget.limit
            for budget in self._budgets.of(resident)
        }
        return {budget: size for budget, size in lacks.items() if size > 0}

    def will_have(self, missing: dict[Budget, float]) -> bool:
        """Whether so much can be freed as soon as no model is too young."""
        return all(
            size <= self.leaving[budget] + self._idle.young[budget] + self._idle.sizes[budget]
            for budget, size in missing.items()
        )

    def take(self, resident: Resident) -> None:
        """It gets what it needs: it starts now, or when others have ended."""
        for budget in self._budgets.of(resident):
            self.used[budget] += self._budgets.need(resident, budget)

    def excess(self, budget: Budget) -> float:
        """Bytes to free so that the budget holds, as far as there are models to park."""
        excess = self.used[budget] - self.leaving[budget] - budget.limit
        return min(excess, self._idle.sizes[budget]) if excess > 0 else 0.0

    def victims(
        self, missing: dict[Budget, float], worth: dict[Budget, float] | None = None
    ) -> list[Resident] | None:
        """What to park so that so much becomes free; None: that is not possible.

        ``worth``: only what is worth less is parked, by budget.
        """
        chosen: list[Resident] = []
        for budget, size in missing.items():
            needed = size - self.leaving[budget]
            if needed <= 0:
                continue
            candidates = self._idle.parkable[budget]
            needed -= sum(candidates[each].size for each in chosen if each in candidates)
            if needed > self._idle.sizes[budget]:
                return None
            left = {
                resident: each
                for resident, each in candidates.items()
                if resident not in chosen and (worth is None or each.value < worth[budget])
            }
            more = choose(left.values(), needed)
            if more is None:
                return None
            chosen += [resident for resident, each in left.items() if each in more]
        for resident in chosen:
            self.leaving.update(self._idle.remove(resident))
        return chosen

    def next_to_park(self, budget: Budget) -> Resident | None:
        """The one that is worth least."""
        candidates = self._idle.parkable[budget]
        return min(candidates, key=lambda each: candidates[each].value, default=None)
