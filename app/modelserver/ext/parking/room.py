"""One look at who has how much memory, and what is to be parked for others."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from modelserver.ext.parking.policy import Candidate, choose

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelserver.ext.parking.budgets import Budget, Budgets
    from modelserver.ext.parking.resident import Resident

# Seconds that a model stays loaded at least.
MIN_RESIDENCE = 10.0


class Room:
    """Who has what at a time; it follows what is decided from then on.

    ``used`` are the bytes of what is loaded, is loading, or has not ended yet, by budget; ``leaving`` those
    of what ends. ``residence``: seconds since its load before which a model is not parked.
    """

    def __init__(
        self,
        budgets: Budgets,
        residents: Iterable[Resident],
        now: float,
        residence: float = MIN_RESIDENCE,
    ) -> None:
        self.used: Counter[Budget] = Counter()
        self.leaving: Counter[Budget] = Counter()
        self._budgets = budgets
        self._parkable: defaultdict[Budget, dict[Resident, Candidate]] = defaultdict(dict)
        self._young: Counter[Budget] = Counter()
        for each in residents:
            is_leaving = each.is_leaving
            if not (is_leaving or each.pool.workers):
                continue
            may_park, is_young = each.may_park, now - each.loaded_at < residence
            for budget in budgets.of(each):
                size = budgets.occupied(each, budget)
                self.used[budget] += size
                if is_leaving:
                    self.leaving[budget] += size
                elif may_park and is_young:
                    self._young[budget] += size
                elif may_park:
                    value = budgets.value(each, budget, now)
                    self._parkable[budget][each] = Candidate(each, value, size)

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
            size <= self.leaving[budget] + self._young[budget] + self._sizes(budget)
            for budget, size in missing.items()
        )

    def take(self, resident: Resident) -> None:
        """It gets what it needs: it starts now, or when others have ended."""
        for budget in self._budgets.of(resident):
            self.used[budget] += self._budgets.need(resident, budget)

    def excess(self, budget: Budget) -> float:
        """Bytes to free so that the budget holds, as far as there are models to park."""
        excess = self.used[budget] - self.leaving[budget] - budget.limit
        return max(0.0, min(excess, self._sizes(budget)))

    def victims(
        self, missing: dict[Budget, float], worth: dict[Budget, float] | None = None
    ) -> list[Resident] | None:
        """What to park so that so much becomes free; None: that is not possible.

        ``worth``: only what is worth less is parked, by budget.
        """
        chosen: dict[Resident, tuple[Budget, float]] = {}
        for budget, size in missing.items():
            candidates = self._parkable[budget]
            needed = size - self.leaving[budget]
            needed -= sum(candidates[each].size for each in chosen if each in candidates)
            left = {
                resident: each
                for resident, each in candidates.items()
                if resident not in chosen and (worth is None or each.value < worth[budget])
            }
            more = choose(left.values(), needed)
            if more is None:
                return None
            for resident in [resident for resident, each in left.items() if each in more]:
                chosen[resident] = budget, left[resident].value
        for resident, (budget, value) in chosen.items():
            budget.policy.parked(value)
            self._leave(resident)
        return list(chosen)

    def next_to_park(self, budget: Budget) -> Resident | None:
        """The one that is worth least."""
        candidates = self._parkable[budget]
        return min(candidates, key=lambda each: candidates[each].value, default=None)

    def _sizes(self, budget: Budget) -> float:
        """Bytes of what may be parked now."""
        return sum(each.size for each in self._parkable[budget].values())

    def _leave(self, resident: Resident) -> None:
        for budget, candidates in self._parkable.items():
            if (candidate := candidates.pop(resident, None)) is not None:
                self.leaving[budget] += int(candidate.size)
