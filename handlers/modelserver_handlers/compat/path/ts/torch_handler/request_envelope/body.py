"""The body alone."""

from __future__ import annotations

from modelserver_handlers.envelopes.body import BodyEnvelope

__all__ = ["BodyEnvelope"]
