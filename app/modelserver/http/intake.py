"""Limits the bytes of requests that are incomplete, or were received by gRPC and not read yet, over all
connections (F31).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelserver.errors import PayloadTooLarge, ServiceUnavailable
from modelserver.http.head import HEADER_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelserver.settings.settings import Settings


@dataclass(slots=True)
class Intake:
    """Shared by the connections of a process: they hold ``held`` bytes, and at most ``limit``."""

    limit: int
    held: int = 0

    @classmethod
    def of(cls, settings: Settings, processes: int = 1) -> Intake:
        """The intake of one of several processes: its share, but room for at least one request."""
        return cls(max(settings.max_incoming_bytes // processes, settings.max_request_size + HEADER_LIMIT))

    @property
    def is_over(self) -> bool:
        """Whether the connections hold more than they may."""
        return self.held > self.limit

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Counts ``size`` bytes while in the context. Raises IntakeFull."""
        self.held += size
        try:
            if self.is_over:
                raise IntakeFull(self.limit)
            yield
        finally:
            self.held -= size


class IntakeFull(ServiceUnavailable):
    """More is being received at one time than the server may hold."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"More than max_incoming_bytes={limit} bytes of requests are coming in at this time; try later."
        )


def too_large(limit: int) -> PayloadTooLarge:
    """The error for a body over the limit."""
    return PayloadTooLarge(f"The request body is larger than max_request_size={limit} bytes.")
