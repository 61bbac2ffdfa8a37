"""The console beside the rest of the management address."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from modelserver.ext.console.app import AppWithConsole
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.surface.api.services import LateApp

if TYPE_CHECKING:
    from tests.ext.console.doubles import Hot


async def test_it_is_made_when_somebody_opens_it(hot: Hot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other paths go to the application, also those that only begin alike; a server that has stopped serves
    no streams any more.
    """
    passed: list[str] = []

    async def call(_: LateApp, scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(LateApp, "__call__", call)
    registry = SimpleNamespace(versions=list)
    services = SimpleNamespace(registry=registry, settings=Settings(), tokens=None, recorder=None)
    app = AppWithConsole({"management"}, cast("Any", services), hot)
    transport = httpx.ASGITransport(cast("Any", app))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/models", "/consoles", "/"):
            assert (await client.get(path)).status_code == 204
        before = app._making
        page = await client.get("/console")
        app.close()
        ended = await client.get("/console/events")

    assert (before, passed) == (None, ["/models", "/consoles", "/"])
    assert (page.status_code, ended.status_code, ended.text) == (200, 200, "")


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({}, "http://127.0.0.1:8081/console"),
        ({"enable_console": False}, None),
        ({"inference_address": Address("http", "127.0.0.1", 8081)}, None),
        ({"management_address": Address("unix", path="/tmp/m")}, None),
    ],
)
def test_where_it_is(changes: dict[str, Any], url: str | None) -> None:
    """Never where inference is served, and no browser opens a unix socket."""
    assert Settings(**changes).console_url == url
