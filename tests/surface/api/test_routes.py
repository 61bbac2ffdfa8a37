"""The routes that every listener has, and what the documents say of them and of tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.documents import describe_listener

from modelserver.errors import ServiceUnavailable
from modelserver.surface.api.application import Application
from modelserver.surface.api.routes import add_health


def client(*models: tuple[int, bool]) -> httpx.AsyncClient:
    """Asks a server whose models have so many workers to have, and a loaded one or not."""
    pools = [
        SimpleNamespace(pool=SimpleNamespace(min_workers=fewest, ready=ready)) for fewest, ready in models
    ]
    registry: Any = SimpleNamespace(defaults=lambda: iter(pools))
    app = Application()
    add_health(app, registry)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server")


@pytest.mark.parametrize(
    "models",
    [(), ((1, True), (2, True)), ((0, False),)],
    ids=["no models", "all loaded", "none wanted"],
)
async def test_ready(models: tuple[tuple[int, bool], ...]) -> None:
    """Each model that should have workers has a loaded one."""
    async with client(*models) as asked:
        answer = await asked.get("/readyz")

    assert (answer.status_code, answer.json()) == (200, {"status": "Ready"})


async def test_not_ready() -> None:
    """The reason counts the models; no name is told to those without a token."""
    async with client((1, False), (1, True), (0, False)) as asked:
        with pytest.raises(ServiceUnavailable, match=r"^Not ready: 1 of 2 models have no loaded worker\.$"):
            await asked.get("/readyz")


async def test_liveness() -> None:
    """Whoever answers lives, whatever its models do."""
    async with client((1, False)) as asked:
        answer = await asked.get("/livez")

    assert (answer.status_code, answer.json()) == (200, {"status": "Live"})


def test_documents() -> None:
    """Probes stand in the documents of inference and management, the renewal of tokens in the latter's."""
    inference, management = (describe_listener(kind, "1")["paths"] for kind in ("inference", "management"))

    for path in ("/livez", "/readyz"):
        assert inference[path].keys() == management[path].keys() == {"get", "head"}
    renewal = management["/token"]["get"]
    assert renewal["parameters"][0]["schema"]["enum"] == ["inference", "management"]
    assert {"200", "400", "404", "409"} <= renewal["responses"].keys()
    assert "/token" not in inference
