"""KServe's V1."""

from __future__ import annotations

from modelserver_handlers.envelopes.kserve import KserveEnvelope
from modelserver_handlers.envelopes.kserve import KserveEnvelope as KServeEnvelope

__all__ = ["KServeEnvelope", "KserveEnvelope"]
