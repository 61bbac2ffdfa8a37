"""The place of a version that could not be restored: listed with the reason, and serving nothing (F55)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from modelserver.errors import InvalidModel, ServiceUnavailable
from modelserver.pools.pool import Pool

if TYPE_CHECKING:
    from modelserver.batching.request import Request
    from modelserver.pools.spec import PoolStatistics
    from modelserver.pools.worker import Worker


class FailedPool(Pool):
    """A pool that never has a worker; it keeps the numbers of workers that were asked for.

    So ``healthy`` is false where workers should be, and the next snapshot still names the version.
    """

    reason = ""

    def submit(self, request: Request, asked_version: str | None = None) -> None:
        """Raises ServiceUnavailable with the reason."""
        self.metrics.rejected("no_worker")
        raise ServiceUnavailable(f"{self.label} could not be restored: {self.reason}")

    def expect(self, min_workers: int, max_workers: int) -> None:
        """Notes how many workers there should be."""
        self.min_workers, self.max_workers = min_workers, max_workers

    def scale(self, min_workers: int, max_workers: int) -> list[Worker]:
        """Raises InvalidModel with the reason: there is nothing that a worker could load."""
        raise InvalidModel(
            f"{self.label} could not be restored: {self.reason} Register it again, or unregister it."
        )

    def statistics(self) -> PoolStatistics:
        """The workers that should be count as failed."""
        return replace(super().statistics(), failed=self.min_workers)

    @property
    def failure(self) -> str:
        return self.reason
