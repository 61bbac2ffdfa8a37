"""The pool of a version that could not be restored: listed with the reason, but not serving (F55)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from modelserver.engine.pools.pool import Pool
from modelserver.errors import InvalidModel, ServiceUnavailable

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.engine.pools.spec import PoolStatistics
    from modelserver.engine.pools.worker import Worker


class FailedPool(Pool):
    """A pool without workers that keeps their configured numbers, for ``healthy`` and for snapshots."""

    reason = ""

    def submit(self, request: Request, version: str | None = None) -> None:
        """Raises ServiceUnavailable with the reason."""
        self.metrics.requests.rejected("no_worker")
        raise ServiceUnavailable(f"{self.label} could not be restored: {self.reason}")

    def expect(self, min_workers: int, max_workers: int) -> None:
        """Sets how many workers there should be."""
        self.crew.min_workers, self.crew.max_workers = min_workers, max_workers

    def scale(self, min_workers: int, max_workers: int) -> list[Worker]:
        """Raises InvalidModel with the reason, as there is nothing to load."""
        raise InvalidModel(
            f"{self.label} could not be restored: {self.reason} Register it again, or unregister it."
        )

    def statistics(self) -> PoolStatistics:
        """Counts the expected workers as failed."""
        return replace(super().statistics(), failed=self.min_workers)

    @property
    def failure(self) -> str:
        return self.reason
