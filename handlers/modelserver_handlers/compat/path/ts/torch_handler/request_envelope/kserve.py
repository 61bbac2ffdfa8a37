"""KServe's V1."""

from __future__ import annotations

from modelserver_handlers.envelopes.base import BaseEnvelope  # noqa: F401 - as in TorchServe
from modelserver_handlers.envelopes.kserve import KserveEnvelope
from modelserver_handlers.envelopes.kserve import KserveEnvelope as KServeEnvelope

__all__ = ["KServeEnvelope", "KserveEnvelope"]
