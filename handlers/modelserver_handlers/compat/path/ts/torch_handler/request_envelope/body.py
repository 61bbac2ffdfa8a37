"""The body alone."""

from __future__ import annotations

from modelserver_handlers.envelopes.base import BaseEnvelope  # noqa: F401 - as in TorchServe
from modelserver_handlers.envelopes.body import BodyEnvelope

__all__ = ["BodyEnvelope"]
