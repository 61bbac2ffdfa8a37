"""Services of the time before handlers."""

from __future__ import annotations

from modelserver_handlers.compat.services import ModelService, SingleNodeService

__all__ = ["ModelService", "SingleNodeService"]
