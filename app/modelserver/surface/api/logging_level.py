"""Changes the log level while the server runs: our addition to the management API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.engine.telemetry.logs import LEVELS, log_level, set_log_level
from modelserver.errors import BadRequest
from modelserver.surface.api.descriptions import TEXT, add, answers, operation, query, record
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from fastapi import FastAPI


def add_logging_level(app: FastAPI) -> None:
    """Adds ``GET /logging`` and ``PUT /logging?level=``."""

    async def show() -> Response:
        return Response(pretty({"level": log_level()}), media_type=JSON)

    async def change(request: Request) -> Response:
        level = (Parameters.of_query(request).text("level") or "").lower()
        if level not in LEVELS:
            raise BadRequest(f"level={level[:40]}: one of {', '.join(LEVELS)} is needed")
        set_log_level(level)
        return await show()

    level = {**query("level", "string", "debug, info, warn or error.", example="debug"), "required": True}
    shown = record({"level": TEXT})
    asked = operation("Management", "getLogLevel", "How much the server logs.", answers("The level.", shown))
    changed = operation(
        "Management",
        "setLogLevel",
        "Change how much the server logs.",
        answers("The level.", shown, 400),
        parameters=[level],
    )
    add(app, "/logging", show, get=asked)
    add(app, "/logging", change, put=changed)
