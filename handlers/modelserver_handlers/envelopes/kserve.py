"""``kserve``: KServe's V1 bodies on every route (reference 14.6)."""

from __future__ import annotations

from typing import Any

from modelserver_handlers.envelopes.base import BaseEnvelope, is_explaining, listed


class KserveEnvelope(BaseEnvelope):
    """The elements of ``instances`` in; ``{"predictions": [...]}`` out, ``explanations`` where asked for."""

    def unfold(self, request: Any) -> list[Any]:
        """The instances as they are. Raises Malformed for no list of them."""
        return listed(request, "instances")

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """KServe's V1 answer."""
        return {"explanations" if is_explaining(self.context) else "predictions": answers}
