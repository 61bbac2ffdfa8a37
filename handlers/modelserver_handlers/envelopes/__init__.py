"""Request envelopes: formats of requests that the handler need not know (reference 14.6).

``service_envelope`` in config.properties names one for all models; as in TorchServe, a manifest's
``envelope`` is not read. A handler in an envelope gets a flat list of values, and its batches are not
pipelined. Importing this does not import torch.
"""

from __future__ import annotations

from modelserver_handlers.envelopes.base import BaseEnvelope
from modelserver_handlers.envelopes.instances import BodyEnvelope, JSONEnvelope, KserveEnvelope
from modelserver_handlers.envelopes.kservev2 import KserveV2Envelope
from modelserver_handlers.envelopes.unfolding import Instance

__all__ = [
    "ENVELOPES",
    "TAKES_INSTANCES",
    "BaseEnvelope",
    "BodyEnvelope",
    "Instance",
    "JSONEnvelope",
    "KserveEnvelope",
    "KserveV2Envelope",
]

ENVELOPES: dict[str, type[BaseEnvelope]] = {
    "body": BodyEnvelope,
    "json": JSONEnvelope,
    "kserve": KserveEnvelope,
    "kservev2": KserveV2Envelope,
}
"""The envelopes by the values of ``service_envelope``."""

TAKES_INSTANCES = frozenset({"json", "kserve", "kservev2"})
"""Envelopes with which V1 bodies are always split into instances."""
