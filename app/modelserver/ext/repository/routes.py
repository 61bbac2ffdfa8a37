"""KServe's model repository over REST: lists, loads and unloads the store's models (kserve reference 8)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import JSONResponse
from typing_extensions import Required, TypedDict

from modelserver.errors import BadRequest, MethodNotAllowed
from modelserver.ext.repository.model_repository import ModelRepository
from modelserver.models.registry import Registry
from modelserver.models.settings.address import HostPort
from modelserver.models.settings.settings import Settings
from modelserver.surface.api.application import Application, JsonBody
from modelserver.surface.api.models import Nothing
from modelserver.surface.api.parameters import read_object
from modelserver.surface.api.services import Services


class IndexRequest(TypedDict, total=False):
    """Which models are listed."""

    ready: Annotated[bool, Field(json_schema_extra={"default": False})]


class RepositoryModel(TypedDict, total=False):
    """A version, or a model of the store that is not loaded."""

    name: Required[str]
    version: str
    state: Required[Literal["READY", "LOADING", "UNAVAILABLE"]]
    reason: Required[str]


class Loaded(TypedDict):
    """The model is loaded."""

    name: str
    load: bool


class Unloaded(TypedDict):
    """The model is unloaded."""

    name: str
    unload: bool


def add_routes(app: Application, services: Services, *, everybody: bool) -> None:
    """Adds the routes. ``everybody``: clients on other machines may load and unload too."""
    api = RepositoryApi(services.registry, services.settings, everybody=everybody)
    add = app.section("Repository")
    model = "/v2/repository/models/{name}"
    body = JsonBody(IndexRequest, "Which are wanted.", {}, required=False)
    about = "The loaded models, and those of the model store that could be loaded."
    entries = list[RepositoryModel]
    add(api.index, "post /v2/repository/index", "repository_index", about, entries, (400,), body=body)
    body = JsonBody(Nothing, "Nothing needs to be said.", {}, required=False)
    refused = (400, 404, 405)
    about, failed = "Load a model from the model store, also one that is loaded.", (*refused, 500, 503)
    add(api.load, f"post {model}/load", "repository_load", about, Loaded, failed, body=body)
    about = "Unload all versions of a model."
    add(api.unload, f"post {model}/unload", "repository_unload", about, Unloaded, refused, body=body)


class RepositoryApi:
    """One method per route.

    At an address for inference only, which may be open to many, just clients on this machine may load and
    unload models.
    """

    def __init__(self, registry: Registry, settings: Settings, *, everybody: bool) -> None:
        self._repository = ModelRepository(registry, settings)
        self._settings = settings
        self._everybody = everybody

    async def index(self, request: Request) -> JSONResponse:
        only_ready = (await read_object(request)).get("ready", False)
        if not isinstance(only_ready, bool):
            raise BadRequest(f"ready is {only_ready!r} instead of true or false")
        return JSONResponse(await self._repository.list(only_ready=only_ready))

    async def load(self, request: Request, name: str) -> JSONResponse:
        self._check_allowed(request)
        await _check_parameters(request, ())
        await self._repository.load(name)
        return JSONResponse({"name": name, "load": True})

    async def unload(self, request: Request, name: str) -> JSONResponse:
        self._check_allowed(request)
        await _check_parameters(request, ("unload_dependents",))
        await self._repository.unload(name)
        return JSONResponse({"name": name, "unload": True})

    def _check_allowed(self, request: Request) -> None:
        if not self._settings.enable_model_api:
            raise MethodNotAllowed
        is_near = request.client is None or HostPort(*request.client).is_loopback
        if not self._everybody and not is_near:
            raise MethodNotAllowed(
                message="Only clients on the server's machine may load and unload models at this address; "
                "the management address has these routes too."
            )


async def _check_parameters(request: Request, known: tuple[str, ...]) -> None:
    """Refuses unsupported parameters, such as a model's files in the request itself."""
    parameters = (await read_object(request)).get("parameters") or {}
    if not isinstance(parameters, dict):
        raise BadRequest("parameters is not an object")
    for name in parameters:
        if name not in known:
            raise BadRequest(f"parameter '{name[:100]}' is not supported")
