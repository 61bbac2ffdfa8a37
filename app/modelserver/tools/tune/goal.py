"""What to tune for: a limit on the latency, the most throughput, or the least latency."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from modelserver.tools.tune.figure import Figure

ALLOWED = 'p50, p90 or p99 with a limit in ms or s ("p99<=80ms"), max-throughput or min-latency is needed'
_LIMIT = re.compile(r"(p50|p90|p99)\s*<=\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(ms|s)", re.IGNORECASE)

Kind = Literal["limit", "throughput", "latency"]
Percentile = Literal["p50", "p90", "p99"]


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

    def shown(self, figure: Figure) -> str:
        return f"{figure.rate:.4g} requests/s, {self.percentile} {self.latency(figure):.4g} ms"


def parse_goal(text: str) -> Goal:
    """Read ``p50|p90|p99<=N(ms|s)``, ``max-throughput`` or ``min-latency``.

    ``min-latency`` is judged by the median: the tail of a short run is mostly chance. Raises ConfigError with
    what is allowed.
    """
    given = text.strip()
    if given == "max-throughput":
        return Goal(given, "throughput", "p99")
    if given == "min-latency":
        return Goal(given, "latency", "p50")
    found = _LIMIT.fullmatch(given)
    limit = float(found[2]) * (1000 if found[3].lower() == "s" else 1) if found else 0.0
    if found is None or limit <= 0:
        raise ConfigError(f"--goal={' '.join(text.split())}: {ALLOWED}")
    percentile = found[1].lower()
    return Goal(
        f"{percentile}<={limit:g}ms",
        "limit",
        "p50" if percentile == "p50" else "p90" if percentile == "p90" else "p99",
        limit,
    )
