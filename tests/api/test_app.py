"""The application of each listener."""

from __future__ import annotations

from typing import Any, cast

import httpx

from modelserver.api.app import build_app
from modelserver.api.services import Services
from modelserver.settings.settings import Settings


async def test_examples_go_to_the_listener_that_was_asked() -> None:
    """Whatever its port is; names of parameters are not broken inside words."""
    for role, port in (("inference", 8080), ("management", 8081), ("metrics", 8082)):
        app = build_app({cast("Any", role)}, Services(cast("Any", None), cast("Any", None), Settings()))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://host:{port}") as client:
            page = (await client.get("/docs")).text
        assert f"http://host:{port}/" in page
        assert "http://localhost:8080" not in page
        assert "td:first-child { white-space: nowrap; }" in page
