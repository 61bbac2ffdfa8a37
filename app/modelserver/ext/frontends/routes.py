"""``GET /frontends`` of the management API: the processes that receive requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from modelserver.surface.api.services import Services
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application

_Count = Annotated[int, Field(ge=0)]


class FrontEndDescription(TypedDict, total=False):
    """The process in one place."""

    number: int
    state: Literal["ready", "starting"]
    pid: int
    since: str
    connections: _Count
    requests: Annotated[_Count, Field(description="Requests that it has passed on, not answered yet.")]
    memoryUsage: Annotated[_Count, Field(description="Resident bytes.")]
    cpuSeconds: Annotated[float, Field(description="Processor time since its start.")]
    replaced: Annotated[_Count, Field(description="How many processes have ended in this place.")]


class FrontEnds(TypedDict):
    """All of them."""

    frontEnds: list[FrontEndDescription]


def add_routes(app: Application, _: Services, describe: Callable[[], list[dict[str, Any]]]) -> None:
    """Adds the route; ``describe`` describes each process."""

    async def show() -> Response:
        return Response(pretty({"frontEnds": describe()}), media_type=JSON)

    text = "The processes that receive requests."
    app.section("Management")(show, "get /frontends", "frontEnds", text, FrontEnds)
