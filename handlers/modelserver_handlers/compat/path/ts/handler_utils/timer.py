"""Times of a handler's methods."""

from __future__ import annotations

from modelserver_handlers.timer import timed

__all__ = ["timed"]
