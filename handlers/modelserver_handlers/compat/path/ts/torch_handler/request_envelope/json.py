"""Instances in JSON."""

from __future__ import annotations

from modelserver_handlers.envelopes.base import BaseEnvelope  # noqa: F401 - as in TorchServe
from modelserver_handlers.envelopes.instances import JSONEnvelope

__all__ = ["JSONEnvelope"]
