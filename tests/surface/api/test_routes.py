import json
import logging
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.documents import describe_listener

from modelserver.errors import BadRequest
from modelserver.models.registry import Registry
from modelserver.surface.api.application import Application
from modelserver.surface.api.routes import add_health, add_logging_level


def client(*models: tuple[int, bool]) -> httpx.AsyncClient:
    """A client of a server whose models should have so many workers, and have a loaded one or not."""
    pools = [SimpleNamespace(min_workers=fewest, ready=ready) for fewest, ready in models]
    registry = SimpleNamespace(defaults=lambda: (SimpleNamespace(pool=pool) for pool in pools))
    registry.readiness = partial(Registry.readiness, registry)
    app = Application()
    add_health(app, registry)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server")


@pytest.mark.parametrize(
    "models", [(), ((1, True), (2, True)), ((0, False),)], ids=["no models", "all loaded", "none wanted"]
)
async def test_readiness_is_200_when_all_models_are_loaded(models):
    async with client(*models) as response:
        answer = await response.get("/readyz")

    assert (answer.status_code, answer.json()) == (200, {"status": "Ready"})


def test_documents_name_probes_and_renewal_of_tokens():
    inference, management = (describe_listener(kind, "1")["paths"] for kind in ("inference", "management"))

    for path in ("/livez", "/readyz"):
        assert inference[path].keys() == management[path].keys() == {"get", "head"}
    renewal = management["/token"]["get"]
    assert renewal["parameters"][0]["schema"]["enum"] == ["inference", "management"]
    assert {"200", "400", "404", "409"} <= renewal["responses"].keys()
    assert "/token" not in inference


@pytest.fixture
async def logging_client():
    logger = logging.getLogger("modelserver")
    before = logger.level
    logger.setLevel(logging.INFO)
    app = Application()
    add_logging_level(app)

    async def refuse(_: Request, error: Exception) -> Response:
        return Response(json.dumps({"message": str(error)}), 400)

    app.add_exception_handler(BadRequest, refuse)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as made:
        yield made
    logger.setLevel(before)


async def test_level_is_changed(logging_client, caplog):
    log = logging.getLogger("modelserver.server")
    assert (await logging_client.get("/logging")).json() == {"level": "info"}
    assert not log.isEnabledFor(logging.DEBUG)
    for level, number in (("debug", 10), ("WARN", 30), ("error", 40), ("info", 20)):
        answer = await logging_client.put("/logging", params={"level": level})
        assert answer.json() == {"level": level.lower()}
        assert (log.isEnabledFor(number), log.isEnabledFor(number - 1)) == (True, False)
        assert f"The log level is now {level.lower()}" in caplog.text


@pytest.mark.parametrize("level", [None, "", "loud", "x" * 1000, "info\nfake"])
async def test_unknown_level_changes_nothing(logging_client, level):
    answer = await logging_client.put("/logging", params={} if level is None else {"level": level})

    assert answer.status_code == 400
    assert answer.json()["message"].endswith("one of debug, info, warn, error is needed")
    assert len(answer.text) < 200
    assert logging.getLogger("modelserver").level == logging.INFO
