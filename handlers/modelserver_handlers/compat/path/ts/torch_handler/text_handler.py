"""The base of handlers of texts."""

from __future__ import annotations

from modelserver_handlers.text_handler import TextHandler

__all__ = ["TextHandler"]
