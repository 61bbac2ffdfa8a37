"""Texts of several generations at once."""

from __future__ import annotations

from modelserver_handlers.batch_streamer import TextIteratorStreamerBatch

__all__ = ["TextIteratorStreamerBatch"]
