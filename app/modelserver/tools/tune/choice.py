"""Chooses the simplest of the measured settings that are about as good as the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.tools.tune.figure import Figure
    from modelserver.tools.tune.goal import Goal
    from modelserver.tools.tune.setting import Setting

CLOSE = 0.05  # of the best: smaller differences count as noise


@dataclass(frozen=True, slots=True)
class Point:
    """A setting under a load."""

    setting: Setting
    figure: Figure


def ranked(goal: Goal, points: Sequence[Point]) -> list[Point]:
    """The points within the limit, best first; of those within 5 % of the best, the simplest first."""
    left = sorted((point for point in points if goal.met(point.figure)), key=lambda p: -goal.worth(p.figure))
    order: list[Point] = []
    while left:
        floor = (1 - CLOSE) * goal.worth(left[0].figure)
        close = [point for point in left if goal.worth(point.figure) >= floor]
        chosen = min(close, key=lambda p: (p.setting.simplicity(), -goal.worth(p.figure)))
        left.remove(chosen)
        order.append(chosen)
    return order


def best(goal: Goal, points: Sequence[Point]) -> Point | None:
    """The first of :func:`ranked`."""
    return next(iter(ranked(goal, points)), None)


def nearest(goal: Goal, points: Sequence[Point]) -> Point | None:
    """The point closest to a limit that none meets; None if all are void."""
    whole = [point for point in points if not point.figure.void]
    return min(whole, key=lambda p: (goal.latency(p.figure), -p.figure.rate), default=None)
