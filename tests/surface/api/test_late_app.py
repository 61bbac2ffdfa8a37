import asyncio
from typing import Any

import httpx

from modelserver.models.settings.settings import Settings
from modelserver.surface.api import app as app_module
from modelserver.surface.api.late_app import LateApp
from modelserver.surface.api.services import Services


async def test_a_request_waits_for_the_application(monkeypatch):
    built: list[Any] = []
    build = app_module.build_app

    def counted(*arguments):
        built.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(app_module, "build_app", counted)
    none = None
    late = LateApp({"metrics"}, Services(none, none, Settings(), *(none,) * 5))
    assert built == []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(late), base_url="http://host") as client:
        answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(3)))

    assert [answer.status_code for answer in answers] == [200] * 3
    assert len(built) == 1
    assert await late.build() is await late.build()
