"""A batch in small parts."""

from __future__ import annotations

from modelserver_handlers.micro_batching import HANDLER_METHODS, MicroBatching

__all__ = ["HANDLER_METHODS", "MicroBatching"]
