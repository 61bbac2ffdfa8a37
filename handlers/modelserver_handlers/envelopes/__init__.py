"""Request envelopes: forms of requests that a handler need not know (reference 14.6).

``service_envelope`` in config.properties names one for all models; a manifest's ``envelope`` is not read, as
in TorchServe. A handler in an envelope gets a flat list of values, and its batches are not pipelined.
Importing this imports no torch.
"""

from __future__ import annotations

from modelserver_handlers.envelopes.base import BaseEnvelope, Malformed
from modelserver_handlers.envelopes.body import BodyEnvelope
from modelserver_handlers.envelopes.instances import JSONEnvelope
from modelserver_handlers.envelopes.kserve import KserveEnvelope
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
    "Malformed",
]

ENVELOPES: dict[str, type[BaseEnvelope]] = {
    "body": BodyEnvelope,
    "json": JSONEnvelope,
    "kserve": KserveEnvelope,
    "kservev2": KserveV2Envelope,
}
"""The values of ``service_envelope``, and what they stand for."""

TAKES_INSTANCES = frozenset({"json", "kserve", "kservev2"})
"""Those with which a model speaks V1 strictly: its bodies are always split into instances."""
