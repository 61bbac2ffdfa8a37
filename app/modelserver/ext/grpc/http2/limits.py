"""What a connection may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a connection. Sizes in bytes, times in seconds.

    ``age``: it takes no new streams from then on, and ends with its last one, ``age_grace`` later at most.
    """

    streams: int = 4096
    fields: int = 64 << 10
    window: int = 1 << 20
    connection_window: int = 16 << 20
    frame: int = 256 << 10
    receive_timeout: float = 60.0
    send_timeout: float = 60.0
    age: float | None = None
    age_grace: float | None = None
