"""How many rows a call may have, once more have exhausted the GPU's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from modelserver.engine.worker.work import Work

# Batches that are split as they do not fit into the GPU's memory, before one is tried whole again.
SPLITS = 1000


class RowLimit:
    """Cuts batches of a handler that ran out of memory; ``report`` gets each change of ``most_rows``.

    ``most_rows`` is 0 where any number fits.
    """

    def __init__(self, batch_size: int, report: Callable[[int], None]) -> None:
        self.most_rows = 0
        self._batch_size = batch_size
        self._report = report
        self._split = 0

    def portions(self, indices: list[int]) -> list[list[int]]:
        """The rows for each call: all of them, or as many as fit into the GPU's memory."""
        if not 0 < self.most_rows < len(indices):
            return [indices] if indices else []
        self._split += 1
        if self._split == SPLITS:
            # There may be more memory by now.
            self._split = 0
            return [indices]
        return list(cut(indices, self.most_rows))

    def fits(self, work: Work, rows: int) -> None:
        """A call with so many rows has not exhausted the GPU's memory."""
        work.fitting = max(work.fitting, rows)
        if 0 < self.most_rows < rows:
            self._change(rows if rows < self._batch_size else 0)

    def learn(self, work: Work) -> None:
        """Limits later calls to what has fitted; not if a row that is too large alone may be the cause."""
        if work.fitting and not work.ran_out_alone and work.fitting != self.most_rows:
            self._change(work.fitting)

    def _change(self, rows: int) -> None:
        self.most_rows, self._split = rows, 0
        self._report(rows)


def cut(indices: list[int], size: int) -> Iterator[list[int]]:
    """Pieces of at most this size."""
    return (indices[start : start + size] for start in range(0, len(indices), size))
