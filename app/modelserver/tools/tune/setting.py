"""One way to serve the model, tried by the tuner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Policy = Literal["adaptive", "greedy", "window"]
_POLICIES: tuple[Policy, ...] = ("adaptive", "greedy", "window")


@dataclass(frozen=True, slots=True)
class Setting:
    """``delay_ms`` caps the wait for a batch. ``threads`` per worker, None: the server's default."""

    batch_size: int
    policy: Policy = "adaptive"
    delay_ms: int = 100
    workers: int = 1
    threads: int | None = None

    def parameters(self) -> dict[str, str | int]:
        """Those for registering."""
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
        return self.threads is not None, self.workers, self.batch_size, _POLICIES.index(self.policy)

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        threads = "" if self.threads is None else f" of {self.threads} thread{'s' * (self.threads > 1)}"
        wait = f" {self.delay_ms} ms" if self.policy == "window" else ""
        return f"batch {self.batch_size}, {self.policy}{wait}, {workers}{threads}"
