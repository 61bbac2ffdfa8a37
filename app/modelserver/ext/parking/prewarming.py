"""Loads models before they are used, if they are used regularly: those with ``prewarm: true``."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from modelserver.ext.parking.budgets import Budgets
from modelserver.ext.parking.forecast import forecast
from modelserver.ext.parking.history import History, recent_uses
from modelserver.ext.parking.resident import Resident
from modelserver.ext.parking.room import Room

if TYPE_CHECKING:
    from modelserver.ext.parking.meters import ParkingMeters

_log = logging.getLogger("modelserver.models")

# Seconds between two forecasts for a parked model, and how long before its use it is to have loaded.
EVERY = 30.0
EARLY = 60.0
# Seconds between notes of when models were used.
NOTES = 300.0
HIT, MISS = "hit", "miss"


def has_habits(resident: Resident) -> bool:
    """Whether it is to be loaded before the times at which it is used."""
    return bool(resident.model.options.values["prewarm"])


class Prewarming:
    """Which models are expected, and which were loaded for that.

    It takes no memory from models that are worth more than what is expected.
    """

    def __init__(
        self,
        budgets: Budgets,
        meters: ParkingMeters,
        history: History,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.counts = {HIT: 0, MISS: 0}
        self.history = history
        self._wall = wall
        self._noted_at = -math.inf
        self._budgets = budgets
        self._meters = meters
        # When the next forecast is due, how many requests are expected, and until when; when loads
        # ahead of time were started, until when they are of use, and for how many requests.
        self._due: dict[Resident, float] = {}
        self._expected: dict[Resident, tuple[float, float]] = {}
        self._ahead: dict[Resident, tuple[float, float, float]] = {}

    def look(self, resident: Resident, now: float) -> None:
        """Notes requests, whether a load ahead was of use, and what is expected."""
        if not has_habits(resident):
            return
        is_parked = resident.state == "parked"
        if not is_parked:
            recent_uses(resident.model, now).look(now, resident.model)
        if (ahead := self._ahead.get(resident)) is not None:
            is_used = resident.used_at >= ahead[0]
            if is_used or is_parked or (now >= ahead[1] and resident.state != "loading"):
                self._count(resident, HIT if is_used else MISS)
                del self._ahead[resident]
        if is_parked and now >= self._due.get(resident, -math.inf):
            self._due[resident] = now + EVERY
            self._expect(resident, now)

    def keeps(self, resident: Resident, now: float) -> bool:
        """Whether it is expected, so that it stays loaded though it is idle."""
        if not has_habits(resident):
            return False
        known = self._ahead.get(resident) or self._expected.get(resident)
        return (known is not None and now < known[1]) or self._expect(resident, now)

    def coming(self, now: float) -> list[Resident]:
        """The parked ones that are expected."""
        expected = self._expected.items()
        return [each for each, (_, until) in expected if now < until and each.state == "parked"]

    def place(self, room: Room, now: float, park: Callable[[list[Resident]], None]) -> None:
        """Starts the expected models that fit; to make room, parks only models that are worth less."""
        for resident in self.coming(now):
            requests, until = self._expected[resident]
            if not (missing := room.missing(resident)):
                _log.info("Model %s %s is loaded ahead of time", resident.model.name, resident.model.version)
                # If it is parked before it is used, it is not loaded for the same requests again.
                del self._expected[resident]
                self._due[resident] = until
                self._ahead[resident] = now, until, requests
                resident.start()
                room.take(resident)
                continue
            worth = {each: self._budgets.value(resident, each, now, requests) for each in missing}
            if (victims := room.victims(missing, worth)) is not None:
                park(victims)
                room.take(resident)

    def limit_of(self, resident: Resident, now: float) -> float:
        """What it parks on a cluster is worth less: than what is expected, if it is loaded for that."""
        if (ahead := self._ahead.get(resident)) is None:
            return math.inf
        return self._budgets.value(resident, self._budgets.machine, now, ahead[2])

    def is_ahead(self, resident: Resident) -> bool:
        """Whether it was loaded for what is expected, and has not been used since."""
        return resident in self._ahead

    def forget(self, resident: Resident) -> None:
        """It is gone."""
        for each in (self._due, self._expected, self._ahead):
            each.pop(resident, None)

    def note(self, residents: Iterable[Resident], now: float, *, always: bool = False) -> None:
        """Notes in the history, now and then, when these were used."""
        if always or is_over(self._noted_at, NOTES, now):
            self._noted_at = now
            for each in residents:
                recent = recent_uses(each.model, now).uses(now, each.model)
                self.history.note(each.key, recent, self._wall())

    def _expect(self, resident: Resident, now: float) -> bool:
        ahead = self._budgets.need_of(resident).seconds + EARLY + EVERY
        recent = recent_uses(resident.model, now).uses(now, resident.model)
        coming = forecast(self.history.uses(resident.key, recent, self._wall()), ahead)
        self._expected.pop(resident, None)
        if coming is not None:
            self._expected[resident] = coming.requests, now + coming.until + EARLY
        return coming is not None

    def _count(self, resident: Resident, result: str) -> None:
        self.counts[result] += 1
        resident.prewarms[result] += 1
        self._meters.prewarmed(resident.model, result)


def is_over(since: float, seconds: float, now: float) -> bool:
    """Whether so many seconds have passed, or the clock has gone back."""
    return not 0 <= now - since < seconds
