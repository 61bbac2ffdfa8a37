"""A server of one's own, started and stopped from Python."""

from __future__ import annotations

from modelserver_handlers.compat.launcher import register_model, register_model_with_params, start, stop

__all__ = ["register_model", "register_model_with_params", "start", "stop"]
