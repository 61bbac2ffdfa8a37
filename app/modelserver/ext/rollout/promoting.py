"""A promotion under way: what both versions did since the last step, and what is done about it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from modelserver.engine.batching.request import Request
from modelserver.ext.rollout.guard import LEAST, Cause, Evidence, Verdict, judge, next_step
from modelserver.ext.rollout.latencies import Latencies, milliseconds
from modelserver.ext.rollout.plan import Promotion
from modelserver.surface.api.describe import moment

State = Literal["watching", "promoted", "rolled back", "stopped"]


@dataclass(slots=True)
class Report:
    """The state of a promotion, or how it ended, and since when; ``decisions`` counts decisions by cause."""

    version: str
    base: str
    state: State = "watching"
    reason: str = ""
    since: float = field(default_factory=time.time)
    decisions: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(get_args(Cause), 0))

    def note(self, reason: str, state: State = "watching") -> None:
        """Something changed."""
        self.reason, self.state, self.since = reason, state, time.time()

    def describe(self, progress: Progress | None) -> dict[str, Any]:
        """For clients of the management API; ``progress`` if it is under way."""
        return {
            "version": self.version,
            "base": self.base,
            "state": self.state,
            "reason": self.reason or None,
            "since": moment(self.since),
            **({} if progress is None else progress.describe()),
        }


class Progress(NamedTuple):
    """How far it is: the next weight, None after the last; what was counted since the last step; the 99th
    percentiles of both versions, in seconds.
    """

    next_weight: float | None
    seen: Evidence
    percentiles: dict[str, float | None]

    def describe(self) -> dict[str, Any]:
        """For clients of the management API."""
        slowest = {name: milliseconds(seconds) for name, seconds in self.percentiles.items()}
        return {"next": self.next_weight, **msgspec.to_builtins(self.seen), "p99": slowest or None}


class Promoter:
    """Counts the answers of the version that is promoted, and of the one that it replaces."""

    def __init__(self, goal: Promotion, version: str, base: str) -> None:
        self.goal = goal
        self.version = version
        self.base = base
        # The seconds above which an answer is slow, once they are known.
        self._bound: float | None = None
        self.begin()

    def begin(self) -> None:
        """Forgets what was counted."""
        self._latencies, self._base_latencies = Latencies(), Latencies()
        self._answers = self._failed = self._compared = self._differed = 0

    def answered(self, request: Request, version: str, seconds: float) -> None:
        """A client got an answer, or an error."""
        if version == self.base:
            self._base_latencies.add(seconds)
        elif version == self.version:
            self._latencies.add(seconds)
            self._answers += 1
            self._failed += has_failed(request)

    def refused(self, version: str) -> None:
        """A client's request was not even queued."""
        if version == self.version:
            self._answers += 1
            self._failed += 1

    def copied(self, failed: bool, seconds: float, agreed: bool | None) -> None:
        """A copy was answered by the version, or failed."""
        self._latencies.add(seconds)
        self._answers += 1
        self._failed += failed
        if agreed is not None:
            self._compared += 1
            self._differed += not agreed

    def seen(self, weight: float) -> Evidence:
        """What was counted; ``weight`` is the version's."""
        base = self._base_latencies
        if self.goal.p99_ratio is not None and base.total >= LEAST:
            self._bound = (base.percentile(0.99) or 0.0) * self.goal.p99_ratio
        slow = None if self._bound is None else self._latencies.above(self._bound)
        compared = None if weight >= 100 else self._compared
        return Evidence(self._answers, self._failed, slow, compared, self._differed)

    def verdict(self, weight: float) -> tuple[Verdict, float | None]:
        """What to do, and the weight after that; None: there are no more steps."""
        verdict = judge(self.goal, self.seen(weight))
        if verdict.action == "back":
            return verdict, 0
        return verdict, next_step(self.goal, weight) if verdict.action == "on" else weight

    def progress(self, weight: float) -> Progress:
        """At this weight."""
        return Progress(next_step(self.goal, weight), self.seen(weight), self.percentiles())

    def percentiles(self) -> dict[str, float | None]:
        """The 99th percentile of latency of both, in seconds."""
        return {
            self.version: self._latencies.percentile(0.99),
            self.base: self._base_latencies.percentile(0.99),
        }


def has_failed(request: Request) -> bool:
    """Whether the version failed, which a client's own mistake (4xx) is not."""
    if request.error is not None:
        return int(getattr(request.error, "status", 500)) >= 500
    return any(
        answered is not None and answered[0].failed and answered[0].status >= 500
        for answered in request.answers
    )
