"""Probes for those who run the server: ``/livez`` and ``/readyz``, at every address and without a token.

``/ping`` is TorchServe's and says Healthy while workers are loading (reference 6.2); these tell the truth.
Whoever asks has no token, so the answers name no model: ``/v2/models/{model}/ready`` does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from modelserver.api.answers import JSON, pretty
from modelserver.errors import ServiceUnavailable

if TYPE_CHECKING:
    from fastapi import FastAPI

    from modelserver.models.registry import Registry


def add_health(app: FastAPI, registry: Registry) -> None:
    """Adds the two routes."""

    async def live() -> Response:
        """GET /livez: whoever answers lives."""
        return Response(pretty({"status": "Live"}), media_type=JSON)

    async def ready() -> Response:
        """GET /readyz: every model that should have workers has a loaded one."""
        wanted = [model for model in registry.defaults() if model.pool.min_workers]
        missing = sum(not model.pool.ready for model in wanted)
        if missing:
            raise ServiceUnavailable(f"Not ready: {missing} of {len(wanted)} models have no loaded worker.")
        return Response(pretty({"status": "Ready"}), media_type=JSON)

    app.add_api_route("/livez", live, methods=["GET", "HEAD"])
    app.add_api_route("/readyz", ready, methods=["GET", "HEAD"])
