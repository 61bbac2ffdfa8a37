"""The routes that every listener has, and what the documents say of them and of tokens."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.responses import Response
from tests.documents import describe_listener

from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.surface.api.application import Application
from modelserver.surface.api.routes import add_health, add_logging_level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request


def client(*models: tuple[int, bool]) -> httpx.AsyncClient:
    """A client of a server whose models should have so many workers, and have a loaded one or not."""
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
async def test_readiness_is_200_when_all_models_are_loaded(models: tuple[tuple[int, bool], ...]) -> None:
    """Each model that should have workers has a loaded one."""
    async with client(*models) as response:
        answer = await response.get("/readyz")

    assert (answer.status_code, answer.json()) == (200, {"status": "Ready"})


async def test_readiness_is_503_and_counts_the_models() -> None:
    """The reason has the number of models; clients without a token get no names."""
    async with client((1, False), (1, True), (0, False)) as response:
        with pytest.raises(ServiceUnavailable, match=r"^Not ready: 1 of 2 models have no loaded worker\.$"):
            await response.get("/readyz")


async def test_liveness_does_not_depend_on_models() -> None:
    """Whoever answers lives, whatever its models do."""
    async with client((1, False)) as response:
        answer = await response.get("/livez")

    assert (answer.status_code, answer.json()) == (200, {"status": "Live"})


def test_documents_name_probes_and_renewal_of_tokens() -> None:
    """Probes stand in the documents of inference and management, the renewal of tokens in the latter's."""
    inference, management = (describe_listener(kind, "1")["paths"] for kind in ("inference", "management"))

    for path in ("/livez", "/readyz"):
        assert inference[path].keys() == management[path].keys() == {"get", "head"}
    renewal = management["/token"]["get"]
    assert renewal["parameters"][0]["schema"]["enum"] == ["inference", "management"]
    assert {"200", "400", "404", "409"} <= renewal["responses"].keys()
    assert "/token" not in inference


@pytest.fixture
def _restored_level() -> Iterator[None]:
    logger = logging.getLogger("modelserver")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


@pytest.fixture
async def logging_client(_restored_level: None) -> AsyncIterator[httpx.AsyncClient]:
    app = Application()
    add_logging_level(app)

    async def refuse(_: Request, error: Exception) -> Response:
        return Response(json.dumps({"message": str(error)}), 400)

    app.add_exception_handler(BadRequest, refuse)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as made:
        yield made


async def test_level_is_changed(logging_client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """Messages of the server below the level are not written; the change itself is."""
    log = logging.getLogger("modelserver.server")
    assert (await logging_client.get("/logging")).json() == {"level": "info"}
    assert not log.isEnabledFor(logging.DEBUG)
    for level, number in (("debug", 10), ("WARN", 30), ("error", 40), ("info", 20)):
        answer = await logging_client.put("/logging", params={"level": level})
        assert answer.json() == {"level": level.lower()}
        assert (log.isEnabledFor(number), log.isEnabledFor(number - 1)) == (True, False)
        assert f"The log level is now {level.lower()}" in caplog.text


@pytest.mark.parametrize("level", [None, "", "loud", "x" * 1000, "info\nfake"])
async def test_unknown_level_changes_nothing(logging_client: httpx.AsyncClient, level: str | None) -> None:
    """What is no level changes nothing, and the answer says what is allowed."""
    answer = await logging_client.put("/logging", params={} if level is None else {"level": level})

    assert answer.status_code == 400
    assert answer.json()["message"].endswith("one of debug, info, warn, error is needed")
    assert len(answer.text) < 200
    assert logging.getLogger("modelserver").level == logging.INFO
