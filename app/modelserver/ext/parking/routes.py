"""Restarts, loads and parks models over the management API, and says which are loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response
from typing_extensions import NotRequired, TypedDict

from modelserver.errors import BadRequest, Conflict, MethodNotAllowed
from modelserver.models.version import ModelVersion
from modelserver.surface.api.models import PageQuery, Status
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.api.services import Services
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from modelserver.ext.parking.keeper import Keeper
    from modelserver.surface.api.application import Application


class DeviceMemory(TypedDict):
    """A GPU, for models that are loaded on demand."""

    gpu: int
    budget: NotRequired[Annotated[int, Field(description="Bytes that their workers may have of it.")]]
    used: Annotated[int, Field(description="Bytes that they have of it, or need to load.")]
    nextToPark: NotRequired[Annotated[str, Field(description="The one that is worth least there.")]]


class Parking(TypedDict):
    """The models that are loaded on demand."""

    budget: Annotated[int, Field(description="Bytes that their workers may have.")]
    used: Annotated[int, Field(description="Bytes that they have, or need to load.")]
    counts: Annotated[dict[str, int], Field(description="The number of models by state.")]
    models: Annotated[dict[str, list[str]], Field(description="Names and versions by state: a page of them.")]
    nextPageToken: NotRequired[Annotated[str, Field(description="Where the next page begins.")]]
    nextToPark: NotRequired[Annotated[str, Field(description="The one that is worth least, if any may be.")]]
    prewarms: NotRequired[Annotated[dict[str, int], Field(description="Loads ahead: hits and misses.")]]
    devices: NotRequired[Annotated[list[DeviceMemory], Field(description="The GPUs that they use.")]]


class BudgetQuery(BaseModel):
    """Other budgets, in bytes, until the server ends."""

    max_models_memory: Annotated[int, Field(None, description="For the workers of all models on demand.")]
    max_device_memory: Annotated[int, Field(None, description="For those on each GPU.")]


class ActionQuery(BaseModel):
    """What is done with a model."""

    action: Literal["load", "park", "restart"]


def page_of(document: dict[str, Any], parameters: Parameters) -> dict[str, Any]:
    """The document with a page of its models, and how many there are by state."""
    by_state = sorted(document["models"].items(), key=lambda item: (item[0] == "parked", item[0]))
    token, page = parameters.part([(state, name) for state, names in by_state for name in sorted(names)])
    models: dict[str, list[str]] = {}
    for state, name in page:
        models.setdefault(state, []).append(name)
    counts = {state: len(names) for state, names in by_state}
    return {**document, "counts": counts, "models": models, **token}


async def restart(model: ModelVersion) -> int:
    """Replaces each worker by a new one on the same device, once that has loaded; returns how many were.

    Raises:
        Conflict: there are no workers, or one is being replaced already.
        ModelServerError: a new one could not load; the worker stays, and so do those after it.
    """
    crew, count = model.pool.crew, 0
    if not crew.workers:
        raise Conflict(f"Model {model.name} {model.version} has no workers.")
    for worker in list(crew.workers):
        # Others were removed or replaced meanwhile.
        if worker in crew.workers:
            fresh = crew.recycle(worker, "restart", "a restart was requested")
            if fresh is None:
                raise Conflict(f"A worker of model {model.name} {model.version} is being replaced already.")
            await asyncio.shield(fresh.first_load)
            count += 1
    return count


def add_routes(app: Application, services: Services, keeper: Callable[[], Keeper | None]) -> None:
    """Adds the routes; ``keeper`` returns None while there was no model on demand."""

    def describe() -> dict[str, Any]:
        owner = keeper()
        return {"budget": 0, "used": 0, "models": {}} if owner is None else owner.describe()

    def done(text: str) -> Response:
        return Response(pretty(Status(status=text)), media_type=JSON)

    async def show(request: Request) -> Response:
        return Response(pretty(page_of(describe(), Parameters.of_query(request))), media_type=JSON)

    async def change(request: Request) -> Response:
        parameters = Parameters.of_query(request)
        sizes = [parameters.whole(name) for name in BudgetQuery.model_fields]
        # Budgets are compared with floats, which numbers of hundreds of digits do not fit into.
        if not any(sizes) or not all(size is None or 0 < size < 1 << 63 for size in sizes):
            raise BadRequest("max_models_memory or max_device_memory is needed, in bytes")
        if (owner := keeper()) is None:
            raise Conflict("No model is loaded on demand yet: the settings have the budgets.")
        owner.change(*sizes)
        return await show(request)

    async def act(request: Request, name: str, version: str | None = None) -> Response:
        action = request.query_params.get("action")
        if action is None:
            raise MethodNotAllowed  # as TorchServe, which knows no POST here
        model = services.registry.get(name, version)
        demand = model.pool.crew.on_demand
        if action == "restart":
            return done(f"Model {name} {model.version}: {await restart(model)} workers are restarted")
        if action not in ("load", "park"):
            raise BadRequest("action=load, action=park or action=restart is needed")
        if demand is None:
            raise Conflict(f"Model {name} is not loaded on demand: register it with load=on-demand.")
        if action == "park":
            demand.park()
            return done(f"Model {name} {model.version} is parked")
        await demand.load()
        return done(f"Model {name} {model.version} is loaded")

    add = app.section("Models on demand")
    about = "Which models are loaded, and what they use. Of many, a page: those that are parked come last."
    add(show, "get /parking", "parking", about, Parking, query=PageQuery)
    about = "Change the budgets until the server ends; models are parked if they have more."
    add(change, "put /parking", "setBudgets", about, Parking, errors=(400, 409), query=BudgetQuery)
    for path, word in (("/models/{name}", "actOnModel"), ("/models/{name}/{version}", "actOnVersion")):
        about = "Restart a model's workers (`action=restart`); `load` or `park` one that is loaded on demand."
        errors = (400, 404, 405, 409, 500, 503, 507)
        add(act, f"post {path}", word, about, Status, errors=errors, query=ActionQuery)
