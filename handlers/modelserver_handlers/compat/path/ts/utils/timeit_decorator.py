"""Times of calls."""

from __future__ import annotations

from modelserver_handlers.timer import timeit

__all__ = ["timeit"]
