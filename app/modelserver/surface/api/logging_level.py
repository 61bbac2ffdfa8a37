"""Changes the log level while the server runs: our addition to the management API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.engine.telemetry.logs import LEVELS, log_level, set_log_level
from modelserver.errors import BadRequest
from modelserver.surface.api.models import LogLevel, LogLevelQuery
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application


def add_logging_level(app: Application) -> None:
    """Adds ``GET /logging`` and ``PUT /logging?level=``."""

    async def show() -> Response:
        return Response(pretty({"level": log_level()}), media_type=JSON)

    async def change(request: Request) -> Response:
        level = (Parameters.of_query(request).text("level") or "").lower()
        if level not in LEVELS:
            raise BadRequest(f"level={level[:40]}: one of {', '.join(LEVELS)} is needed")
        set_log_level(level)
        return await show()

    add, about = app.section("Management"), "Change how much the server logs."
    add(show, "get /logging", "getLogLevel", "How much the server logs.", LogLevel)
    add(change, "put /logging", "setLogLevel", about, LogLevel, (400,), query=LogLevelQuery)
