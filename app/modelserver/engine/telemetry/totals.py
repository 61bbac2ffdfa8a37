"""How a version's requests ended so far: sums, and errors."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

# Types of errors that are counted by name: handlers may make exceptions of any name.
MOST_TYPES: Final = 20
_OTHERS: Final = "other"


@dataclass(slots=True)
class Total:
    """How often something happened, and for how many seconds in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


class Totals:
    """A version's sums. ``failed``: requests that ended with an error, from their arrival; ``failed_answers``
    are those of them that a worker had answered.
    """

    __slots__ = ("cancelled", "failed", "failed_answers")

    def __init__(self) -> None:
        self.failed, self.failed_answers, self.cancelled = Total(), Total(), Total()

    def fail(self, seconds: float, *, answered: bool) -> None:
        """A request ended with an error, which a worker may have answered."""
        self.failed.add(seconds)
        if answered:
            self.failed_answers.add(seconds)


@dataclass(frozen=True, slots=True)
class LastError:
    """The last request that ended with a status of 500 or more; ``at`` is its time."""

    at: float
    type: str
    status: int
    message: str
    request_id: str


@dataclass(slots=True)
class Errors:
    """The requests of a version that ended with a status of 500 or more, by type of the error."""

    by_type: dict[str, int] = field(default_factory=dict)
    last: LastError | None = None

    def add(self, kind: str, status: int, message: str, request_id: str) -> str:
        """Counts one; returns the type that it counts as: further ones than ``MOST_TYPES`` are "other"."""
        if kind not in self.by_type and len(self.by_type) >= MOST_TYPES:
            kind = _OTHERS
        self.by_type[kind] = self.by_type.get(kind, 0) + 1
        self.last = LastError(time.time(), kind, status, message, request_id)
        return kind

    @property
    def count(self) -> int:
        return sum(self.by_type.values())
