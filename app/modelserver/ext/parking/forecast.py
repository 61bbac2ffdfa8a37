"""What a model that is used regularly is expected to get, by its requests of the last 24 hours.

Requests are expected at a time if there were some at that time of each of the last three hours, or of the day
before. The minutes of the last hour are known, and quarters of an hour before that: a use of yesterday is
expected for a quarter of an hour. Times are seconds before or after now; there is no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Seconds after which a use may come again, and how often it has to have come.
PERIODS = ((3600.0, 3), (86_400.0, 1))


class PastUse(NamedTuple):
    """So many requests, of which the first came ``first`` seconds ago, the last ``last``."""

    first: float
    last: float
    requests: float


class Forecast(NamedTuple):
    """So many requests are expected, the last ones in ``until`` seconds."""

    requests: float
    until: float


def forecast(used: Sequence[PastUse], ahead: float) -> Forecast | None:
    """Returns the use that is expected to begin in the next ``ahead`` seconds; None without one."""
    for period, times in PERIODS:
        coming = [_use(used, period * count, min(ahead, period / 2)) for count in range(1, times + 1)]
        if all(each.requests for each in coming):
            # The last use is known best.
            return Forecast(min(each.requests for each in coming), coming[0].until)
    return None


def _use(used: Sequence[PastUse], age: float, ahead: float) -> Forecast:
    """The requests that began at most ``ahead`` seconds after the time of this age, and when they ended."""
    hits = [each for each in used if each.first > age - ahead and each.last < age]
    return Forecast(sum(each.requests for each in hits), max((age - each.last for each in hits), default=0.0))
