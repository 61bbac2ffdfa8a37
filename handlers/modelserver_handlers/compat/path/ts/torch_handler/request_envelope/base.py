"""The base of envelopes."""

from __future__ import annotations

from modelserver_handlers.envelopes.base import BaseEnvelope

__all__ = ["BaseEnvelope"]
