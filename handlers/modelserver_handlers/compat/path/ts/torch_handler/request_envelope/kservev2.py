"""KServe's V2."""

from __future__ import annotations

from modelserver_handlers.envelopes.base import BaseEnvelope  # noqa: F401 - as in TorchServe
from modelserver_handlers.envelopes.kservev2 import KserveV2Envelope
from modelserver_handlers.envelopes.kservev2 import KserveV2Envelope as KServev2Envelope

__all__ = ["KServev2Envelope", "KserveV2Envelope"]
