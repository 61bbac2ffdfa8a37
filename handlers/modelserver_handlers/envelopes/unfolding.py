"""Several values from one request, and what the context shows while a handler has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelserver_handlers.context import BatchState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelserver_handlers.context import RequestProcessor


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance that the server took from a V1 body: nothing is left to unfold."""

    value: Any

    def copy(self) -> Instance:
        """The same, as it is immutable."""
        return self


class UnfoldedState(BatchState):
    """The batch as a handler in an envelope sees it: one entry per value, each showing its request.

    ``owners[i]`` is the position of value ``i``'s request in the batch of ``requests``. Statuses and headers
    that a handler sets for a value apply to its request.
    """

    def __init__(self, requests: BatchState, owners: Sequence[int]) -> None:
        ids = requests.request_ids or {}
        super().__init__([ids.get(owner, "") for owner in owners], [{}] * len(owners))
        self._requests = requests
        self._owners = owners

    def processor(self, idx: int) -> RequestProcessor:
        """The processor of value ``idx``'s request; raises IndexError outside the batch."""
        if self._replaced is not None:
            return self._replaced[idx]
        return self._requests.processor(self._owners[self._position(idx)])

    def parameters(self, idx: int) -> Mapping[str, Any]:
        """The other top-level fields of the body that value ``idx`` came in."""
        return self._requests.parameters(self._owners[idx])

    def close(self, counts: Sequence[int]) -> None:
        """Pass rejections on: a request with a rejected value is rejected.

        ``counts[i]`` is how many values request ``i`` had.
        """
        first = [sum(counts[:position]) for position in range(len(counts))]
        for idx, (status, message) in sorted(self.rejections.items()):
            owner = self._owners[idx]
            if owner not in self._requests.rejections:
                where = f"instances[{idx - first[owner]}]: " if counts[owner] > 1 else ""
                self._requests.reject(owner, where + message, status)
        self._requests.phases = self.phases
