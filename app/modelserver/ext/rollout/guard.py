"""When the weight of a version goes up, and when it goes back: from counts to a decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from modelserver.ext.rollout.plan import Promotion

# The share of answers that may be slower than the 99th percentile.
_SLOWEST = 0.01
# Answers of the other version without which its percentile says nothing, and comparisons without which
# agreement means nothing, unless fewer answers are asked for.
LEAST = 100


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a version did since its weight changed.

    ``answers`` are those to clients and to copies; ``failed`` and ``slow`` are some of them, slow being
    slower than the bound (``p99_ratio`` times the percentile of the other version), None if there is none
    yet. ``differed`` of ``compared`` did not agree with the other version; ``compared`` is None if the other
    version gets no requests any more, so that nothing can be compared.
    """

    answers: int = 0
    failed: int = 0
    slow: int | None = None
    compared: int | None = 0
    differed: int = 0


Cause = Literal["kept", "errors", "p99_ratio", "agreement"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with the weight, and why; ``cause`` is the bound that was broken, or that all were kept."""

    action: Literal["stay", "on", "back"]
    reason: str
    cause: Cause = "kept"


def judge(goal: Promotion, seen: Evidence) -> Verdict:
    """``back`` as soon as a bound can no longer be kept, ``on`` after enough answers that kept them all."""
    if broken := _broken(goal, seen, goal.after):
        return broken
    if seen.answers < goal.after:
        return Verdict("stay", f"{seen.answers} of {goal.after} answers")
    least = min(LEAST, goal.after)
    if goal.agreement is not None and seen.compared is not None and seen.compared < least:
        return Verdict("stay", f"{seen.compared} of {least} comparisons")
    if broken := _broken(goal, seen):
        return broken
    bounds = ", ".join(f"{name} {bad} of {of}" for _, name, bad, of, _ in _bounds(goal, seen))
    return Verdict("on", f"{seen.answers} answers within the bounds{f' ({bounds})' if bounds else ''}")


def _broken(goal: Promotion, seen: Evidence, least: int = 0) -> Verdict | None:
    """The first bound that is broken, whatever else comes of at ``least`` so many."""
    for cause, name, bad, of, allowed in _bounds(goal, seen):
        if bad > allowed * (least or of):
            return Verdict("back", f"{name}: {bad} of {of}, {allowed * 100:.6g} % are allowed", cause)
    return None


def _bounds(goal: Promotion, seen: Evidence) -> list[tuple[Cause, str, int, int, float]]:
    """The bound, what is bad, how many, of how many, and the share that is allowed."""
    bounds: list[tuple[Cause, str, int, int, float]] = []
    if goal.errors is not None:
        bounds.append(("errors", "failed", seen.failed, seen.answers, goal.errors))
    if goal.p99_ratio is not None and seen.slow is not None:
        name = f"slower than {goal.p99_ratio:g} times the 99th percentile of the other version"
        bounds.append(("p99_ratio", name, seen.slow, seen.answers, _SLOWEST))
    if goal.agreement is not None and seen.compared is not None:
        bounds.append(("agreement", "differed", seen.differed, seen.compared, 1 - goal.agreement))
    return bounds


def next_step(goal: Promotion, weight: float) -> float | None:
    """The weight after this one; None if it is the last."""
    return next((step for step in goal.steps if step > weight), None)
