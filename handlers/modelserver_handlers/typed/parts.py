"""A generator of steps, each with a part for every row, as one generator per row."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


def by_row(steps: Generator[Any, None, None], count: int) -> list[Generator[Any, None, None]]:
    """The rows' parts. The next step runs when a row needs it; an error reaches all rows that are left.

    Raises ValueError in the rows if a step has another number of parts.
    """
    shared = _Steps(steps, count)
    return [shared.row(idx) for idx in range(count)]


class _Steps:
    def __init__(self, steps: Generator[Any, None, None], count: int) -> None:
        self._steps = steps
        self._count = count
        self._waiting: dict[int, deque[Any]] = {idx: deque() for idx in range(count)}
        self._ended: BaseException | None = None

    def row(self, idx: int) -> Generator[Any, None, None]:
        try:
            while self._waiting[idx] or self._advance():
                yield self._waiting[idx].popleft()
            if not isinstance(self._ended, StopIteration):
                assert self._ended is not None  # noqa: S101 - set when there are no more steps
                raise self._ended
        finally:
            del self._waiting[idx]
            if not self._waiting:
                self._steps.close()

    def _advance(self) -> bool:
        """Runs the next step; False if there is none."""
        if self._ended is not None:
            return False
        try:
            parts = next(self._steps)
            if len(parts) != self._count:
                raise ValueError(  # noqa: TRY301 - as if the generator had raised it
                    f"predict yielded {len(parts)} parts, one for each of the {self._count} rows is needed"
                )
        except BaseException as error:  # noqa: BLE001 - raised again in each row
            self._ended = error
            return False
        for idx, waiting in self._waiting.items():
            waiting.append(parts[idx])
        return True
