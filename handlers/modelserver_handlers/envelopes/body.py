"""``body``: the handler gets the values of the bodies instead of ``{part: value}`` (reference 14.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelserver_handlers.envelopes.base import BaseEnvelope


class BodyEnvelope(BaseEnvelope):
    """One value per request: its part ``data`` or its body, as it was decoded."""

    def unfold(self, request: Any) -> list[Any]:
        """The part ``data`` if there is something in it, else the body."""
        if not isinstance(request, Mapping):
            return [request]
        return [request.get("data") or request.get("body")]

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """The answer itself."""
        return answers[0]
