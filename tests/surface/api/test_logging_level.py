from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.responses import JSONResponse

from modelserver.errors import BadRequest
from modelserver.surface.api.application import Application
from modelserver.surface.api.logging_level import add_logging_level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request


@pytest.fixture(autouse=True)
def _restored_level() -> Iterator[None]:
    logger = logging.getLogger("modelserver")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = Application()
    add_logging_level(app)

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"message": str(error)}, 400)

    app.add_exception_handler(BadRequest, refuse)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as made:
        yield made


async def test_level_is_changed(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """Messages of the server below the level are not written; the change itself is."""
    log = logging.getLogger("modelserver.server")
    assert (await client.get("/logging")).json() == {"level": "info"}
    assert not log.isEnabledFor(logging.DEBUG)
    for level, number in (("debug", 10), ("WARN", 30), ("error", 40), ("info", 20)):
        answer = await client.put("/logging", params={"level": level})
        assert answer.json() == {"level": level.lower()}
        assert (log.isEnabledFor(number), log.isEnabledFor(number - 1)) == (True, False)
        assert f"The log level is now {level.lower()}" in caplog.text


@pytest.mark.parametrize("level", [None, "", "loud", "x" * 1000, "info\nfake"])
async def test_no_such_level(client: httpx.AsyncClient, level: str | None) -> None:
    """What is no level changes nothing, and the answer says what is allowed."""
    answer = await client.put("/logging", params={} if level is None else {"level": level})

    assert answer.status_code == 400
    assert answer.json()["message"].endswith("one of debug, info, warn, error is needed")
    assert len(answer.text) < 200
    assert logging.getLogger("modelserver").level == logging.INFO
