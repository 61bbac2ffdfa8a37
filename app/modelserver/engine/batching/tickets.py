"""``useJobTicket``: a request is accepted only if an idle worker can take it at once (reference 8.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from modelserver.engine.batching.queue import BatchQueue, QueueFull

if TYPE_CHECKING:
    from modelserver.engine.batching.policies import Policy
    from modelserver.engine.batching.request import Request


class TicketQueue(BatchQueue):
    """A queue for requests that wait for nothing but their batch.

    Unlike TorchServe, which accepts one request per idle worker, it accepts requests while the batches of the
    idle workers have room. A request larger than a batch is accepted if nothing else waits.

    Args:
        idle: returns how many workers could take a batch now.
    """

    def __init__(
        self, batch_size: int, policy: Policy, max_requests: int, max_bytes: int, idle: Callable[[], int]
    ) -> None:
        super().__init__(batch_size, policy, max_requests, max_bytes)
        self._idle = idle

    def put(self, request: Request) -> None:
        """Also raises :class:`QueueFull` with the reason ``no_ticket``: no idle worker has room."""
        idle = self._idle()
        size = len(request.rows)
        if size > self.batch_size and not self.requests and idle:
            super().put(request)
            return
        waiting = {key: [parcel.count for parcel in lane.parcels] for key, lane in self._lanes.items()}
        waiting.setdefault(request.key, []).append(size)
        if sum(self._batches(counts) for counts in waiting.values()) > idle:
            raise QueueFull("no_ticket")
        super().put(request)

    def _batches(self, counts: Iterable[int]) -> int:
        """How many batches parcels of these sizes need."""
        batches = room = 0
        for count in counts:
            if count > self.batch_size:
                full, count = divmod(count, self.batch_size)  # noqa: PLW2901 - the rest
                batches, room = batches + full, 0
            if count > room:
                batches, room = batches + 1, self.batch_size
            room -= count
        return batches
