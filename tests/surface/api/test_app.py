import asyncio

import httpx
from tests.waiting import turns_of

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.models.settings.settings import Settings
from modelserver.surface.api.app import build_app
from modelserver.surface.api.services import Services


async def test_metrics_of_many_models_leave_the_loop_its_turns():
    metrics = ServerMetrics(hostname="h")
    app = build_app({"metrics"}, Services(None, metrics, Settings(), *(None,) * 5))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        _, of_none = await turns_of(client.get("/metrics"))
        for number in range(50):
            metrics.model(f"m{number}", "1")
        answer, turns = await turns_of(client.get("/metrics"))
        pieces = len(list(metrics.pieces()))
        assert answer.content == b"".join(metrics.pieces())
        assert pieces > 5
        assert turns >= of_none + pieces - 1

        answers, of_two = await turns_of(asyncio.gather(client.get("/metrics"), client.get("/metrics")))
        assert {each.content for each in answers} == {answer.content}
        assert of_two >= of_none + 2 * (pieces - 1)
        names = await client.get("/metrics", params={"name[]": "modelserver_workers_wished"})
        assert (names.status_code, names.content) == (200, b"")
