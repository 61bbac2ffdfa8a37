from types import SimpleNamespace

import httpx
import pytest

from modelserver.ext.console.extension import LateConsole
from modelserver.ext.console.logs.ring import LogRing
from modelserver.ext.console.minutes import Minutes
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings


async def test_console_is_made_for_its_first_request(hot):
    """A server that has stopped serves no streams any more."""
    registry = SimpleNamespace(versions=list)
    services = SimpleNamespace(registry=registry, settings=Settings(), tokens=None, metrics=None)
    endpoints = SimpleNamespace(services=services, unwatched=hot)
    app = LateConsole(endpoints, LogRing(), Minutes(registry))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        before = app._making
        page = await client.get("/console")
        await app.settle(0.0)
        ended = await client.get("/console/events")

    assert before is None
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
def test_where_it_is(changes, url):
    """Never where inference is served, and no browser opens a unix socket."""
    assert Settings(**changes).console_url == url
