"""What to tune for, the settings that are tried, and which of the measured ones is best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from modelserver.engine.policy_names import POLICIES
from modelserver.errors import ConfigError
from modelserver.tools.commands import counted
from modelserver.tools.tune.figure import Figure

ALLOWED = 'p50, p90 or p99 with a limit in ms or s ("p99<=80ms"), max-throughput or min-latency is needed'
_LIMIT = re.compile(r"(p50|p90|p99)\s*<=\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(ms|s)", re.IGNORECASE)

Kind = Literal["limit", "throughput", "latency"]
Percentile = Literal["p50", "p90", "p99"]
CLOSE = 0.05  # of the best: smaller differences count as noise


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal; ``limit_ms`` bounds ``percentile`` where ``kind`` is ``limit``."""

    text: str
    kind: Kind
    percentile: Percentile = "p50"
    limit_ms: float | None = None

    def latency(self, figure: Figure) -> float:
        """The latency that the goal is about, in ms."""
        return {"p50": figure.p50_ms, "p90": figure.p90_ms, "p99": figure.p99_ms}[self.percentile]

    def met(self, figure: Figure) -> bool:
        """Whether a figure is within the limit; a void one never is."""
        if figure.void:
            return False
        return self.limit_ms is None or self.latency(figure) <= self.limit_ms

    def worth(self, figure: Figure) -> float:
        """How good a figure within the limit is; more is better."""
        if figure.void:
            return 0.0
        return 1.0 / max(self.latency(figure), 1e-6) if self.kind == "latency" else figure.rate

    def text_of(self, figure: Figure) -> str:
        return f"{figure.rate:.4g} requests/s, {self.percentile} {self.latency(figure):.4g} ms"


def parse_goal(text: str) -> Goal:
    """Read ``p50|p90|p99<=N(ms|s)``, ``max-throughput`` or ``min-latency``.

    ``min-latency`` is judged by the median: the tail of a short run is mostly chance. Raises ConfigError with
    what is allowed.
    """
    value = text.strip()
    if value == "max-throughput":
        return Goal(value, "throughput", "p99")
    if value == "min-latency":
        return Goal(value, "latency", "p50")
    match = _LIMIT.fullmatch(value)
    limit = float(match[2]) * (1000 if match[3].lower() == "s" else 1) if match else 0.0
    if match is None or limit <= 0:
        raise ConfigError(f"--goal={' '.join(text.split())}: {ALLOWED}")
    percentile = cast("Percentile", match[1].lower())
    return Goal(f"{percentile}<={limit:g}ms", "limit", percentile, limit)


@dataclass(frozen=True, slots=True)
class ModelSetting:
    """``delay_ms`` caps the wait for a batch. ``threads`` per worker, None: the server's default."""

    batch_size: int
    policy: str = "adaptive"
    delay_ms: int = 100
    workers: int = 1
    threads: int | None = None

    def parameters(self) -> dict[str, str | int]:
        """The parameters for registering the model."""
        return {
            "batch_size": self.batch_size,
            "batch_policy": self.policy,
            "max_batch_delay": self.delay_ms,
            "min_workers": self.workers,
            "max_workers": self.workers,
            "worker_threads": self.threads or 0,
        }

    def simplicity(self) -> tuple[bool, int, int, int]:
        """Sorts simple settings first: own threads, workers, batch size, policy."""
        return self.threads is not None, self.workers, self.batch_size, POLICIES.index(self.policy)

    def __str__(self) -> str:
        workers = counted(self.workers, "worker")
        threads = "" if self.threads is None else f" of {counted(self.threads, 'thread')}"
        wait = f" {self.delay_ms} ms" if self.policy == "window" else ""
        return f"batch {self.batch_size}, {self.policy}{wait}, {workers}{threads}"


@dataclass(frozen=True, slots=True)
class Point:
    """A setting under a load."""

    setting: ModelSetting
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
