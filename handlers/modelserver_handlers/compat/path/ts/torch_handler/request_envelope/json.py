"""Instances in JSON."""

from __future__ import annotations

from modelserver_handlers.envelopes.instances import JSONEnvelope

__all__ = ["JSONEnvelope"]
