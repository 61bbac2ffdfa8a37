"""The Open Inference Protocol besides inference: health and metadata, and Triton's extensions."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from pydantic import Field
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import JSONResponse, Response
from typing_extensions import Required, TypedDict

from modelserver.errors import BadRequest, MethodNotAllowed, ServiceUnavailable
from modelserver.ext.triton import switches
from modelserver.ext.triton.metadata import describe_config, describe_model, describe_server
from modelserver.ext.triton.regions import Regions
from modelserver.ext.triton.rpcs import NO_CUDA
from modelserver.ext.triton.statistics import list_statistics
from modelserver.models.registry import Registry
from modelserver.models.settings.address import HostPort
from modelserver.models.settings.settings import Settings
from modelserver.surface.api.application import Application, JsonBody
from modelserver.surface.api.models import Nothing
from modelserver.surface.api.parameters import read_object
from modelserver.surface.api.services import Services

_TAG = "Open Inference"
# The paths of a model, each with the prefix of its operations' names.
_VERSIONS = (("/v2/models/{name}", ""), ("/v2/models/{name}/versions/{version}", "version_"))
Int64: TypeAlias = Annotated[int, Field(json_schema_extra={"format": "int64"})]
_encode = msgspec.json.Encoder().encode


class V2Server(TypedDict):
    """Name, version and extensions of the server."""

    name: str
    version: str
    extensions: list[str]


class V2Models(TypedDict):
    """The names of the registered models."""

    models: list[str]


class V2Live(TypedDict):
    """Whether the server lives."""

    live: bool


class V2Ready(TypedDict):
    """Whether all models are ready."""

    ready: bool


class V2ModelReady(TypedDict):
    """Whether a model is ready."""

    name: str
    ready: bool


class V2TensorSpec(TypedDict):
    """An input or output of a model."""

    name: str
    datatype: str
    shape: Annotated[list[Int64], Field(description="-1 is any size.")]


class V2Model(TypedDict, total=False):
    """Inputs and outputs of a model."""

    name: Required[str]
    versions: list[str]
    platform: Required[str]
    inputs: Required[list[V2TensorSpec]]
    outputs: Required[list[V2TensorSpec]]


class TensorConfig(TypedDict):
    """An input or output."""

    name: str
    data_type: str
    dims: list[Int64]


class V2Config(TypedDict, total=False):
    """The configuration of a model."""

    name: Required[str]
    platform: Required[str]
    backend: str
    max_batch_size: Required[int]
    input: Required[list[TensorConfig]]
    output: Required[list[TensorConfig]]
    instance_group: Required[list[dict[str, Any]]]
    dynamic_batching: dict[str, Any]
    sequence_batching: dict[str, Any]
    model_transaction_policy: dict[str, Any]
    parameters: dict[str, Any]


class Duration(TypedDict):
    """How many requests, and how long they took."""

    count: int
    ns: int


class VersionStatistics(TypedDict, total=False):
    """What became of the requests to a version."""

    name: Required[str]
    version: Required[str]
    last_inference: Annotated[int, Field(description="Milliseconds since 1970.")]
    inference_count: Required[int]
    execution_count: Required[int]
    inference_stats: Required[dict[str, Duration]]
    response_stats: dict[str, Any]
    batch_stats: list[dict[str, Any]]
    memory_usage: list[dict[str, Any]]


class V2Statistics(TypedDict):
    """What became of the requests to models."""

    model_stats: list[VersionStatistics]


class V2Region(TypedDict):
    """Registered shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


class RegionRequest(TypedDict, total=False):
    """Which memory."""

    key: Required[str]
    offset: int
    byte_size: Required[int]


class TraceSettings(TypedDict):
    """Nothing is traced in Triton's way."""

    trace_level: list[str]


class LogSettings(TypedDict):
    """How much the server logs, in Triton's terms."""

    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: str


def add_routes(app: Application, services: Services) -> None:
    """Adds the routes."""
    registry = services.registry
    _add_model_routes(app, registry)
    _add_protocol(app, registry, services.settings)
    _add_system_memory(app, services)
    _add_cuda_memory(app)
    _add_trace_settings(app, registry)
    _add_log_settings(app)


def _add_model_routes(app: Application, registry: Registry) -> None:
    async def statistics(name: str = "", version: str | None = None) -> Response:
        models = [msgspec.Raw(_encode(each)) async for each in list_statistics(registry, name, version)]
        return Response(_encode({"model_stats": models}), media_type="application/json")

    async def config(name: str, version: str | None = None) -> JSONResponse:
        return JSONResponse(describe_config(registry.get(name, version)))

    add, text = app.section(_TAG), "What became of the requests to all models."
    add(statistics, "get /v2/models/stats", "v2_statistics", text, V2Statistics)
    for path, prefix in _VERSIONS:
        text = "The configuration of a model."
        add(config, f"get {path}/config", f"v2_{prefix}modelConfig", text, V2Config, (404,))
        text = "What became of the requests to a model."
        add(statistics, f"get {path}/stats", f"v2_{prefix}modelStatistics", text, V2Statistics, (404,))


def _add_protocol(app: Application, registry: Registry, settings: Settings) -> None:
    """What all servers with the protocol have, except inference (kserve reference 5)."""

    async def server() -> JSONResponse:
        return JSONResponse(describe_server(settings))

    async def live() -> JSONResponse:
        return JSONResponse({"live": True})

    async def ready() -> JSONResponse:
        if not all(registry.readiness()):
            raise ServiceUnavailable("Server is not ready.")
        return JSONResponse({"ready": True})

    async def list_models() -> JSONResponse:
        return JSONResponse({"models": registry.names()})

    async def model(name: str, version: str | None = None) -> JSONResponse:
        return JSONResponse(describe_model(registry, name, version))

    async def model_ready(name: str, version: str | None = None) -> JSONResponse:
        if not registry.is_ready(name, version):
            raise ServiceUnavailable(f"Model with name {name} is not ready.")
        return JSONResponse({"name": name, "ready": True})

    add = app.section(_TAG)
    add(server, "get /v2", "v2_server", "Name, version and extensions of the server.", V2Server)
    add(live, "get /v2/health/live", "v2_live", "Whether the server lives.", V2Live)
    add(ready, "get /v2/health/ready", "v2_ready", "Whether all models are ready.", V2Ready, (503,))
    add(list_models, "get /v2/models", "v2_models", "List the models.", V2Models)
    for path, prefix in _VERSIONS:
        about = "Inputs and outputs of a model."
        add(model, f"get {path}", f"v2_{prefix}model", about, V2Model, (404,))
        name, about = f"v2_{prefix}modelReady", "Whether a model is ready."
        add(model_ready, f"get {path}/ready", name, about, V2ModelReady, (404, 503))


def _add_system_memory(app: Application, services: Services) -> None:
    shared = Regions(services)

    async def status(region: str = "") -> JSONResponse:
        return JSONResponse(shared.status(region))

    async def register(request: Request, region: str) -> JSONResponse:
        fields = await read_object(request)
        key, offset, size = fields.get("key"), fields.get("offset", 0), fields.get("byte_size")
        if not isinstance(key, str):
            raise BadRequest("key: the name of the shared memory is needed")
        if type(offset) is not int or type(size) is not int:
            raise BadRequest("offset and byte_size: numbers of bytes are needed")
        shared.register(region, key, offset, size)
        return JSONResponse({})

    async def unregister(region: str = "") -> JSONResponse:
        shared.unregister(region)
        return JSONResponse({})

    add, base = app.section(_TAG), "/v2/systemsharedmemory"
    one = f"{base}/region/{{region}}"
    for path, name, errors in ((base, "v2_sharedMemory", ()), (one, "v2_region", (404,))):
        text = "The registered shared memory."
        add(status, f"get {path}/status", f"{name}_status", text, list[V2Region], errors)
        add(unregister, f"post {path}/unregister", f"{name}_unregister", "Forget shared memory.", Nothing)
    text = "Register shared memory for tensors."
    body = JsonBody(RegionRequest, "Which memory.", {"key": "/tensors_x", "byte_size": 4096})
    add(register, f"post {one}/register", "v2_region_register", text, Nothing, (400, 413), body=body)


def _add_cuda_memory(app: Application) -> None:
    async def status() -> JSONResponse:
        return JSONResponse([])

    async def register() -> JSONResponse:
        raise BadRequest(NO_CUDA)

    async def unregister() -> JSONResponse:
        """Triton's clients clean up before they begin."""
        return JSONResponse({})

    add, base = app.section(_TAG), "/v2/cudasharedmemory"
    one = f"{base}/region/{{region}}"
    for path, name in ((base, "v2_cuda"), (one, "v2_cuda_region")):
        add(status, f"get {path}/status", f"{name}_status", "An empty list.", list[dict[str, Any]])
        add(unregister, f"post {path}/unregister", f"{name}_unregister", "Nothing to forget.", Nothing)
    add(
        register,
        f"post {one}/register",
        "v2_cuda_region_register",
        "Refused: there is none.",
        status=400,
    )


def _add_trace_settings(app: Application, registry: Registry) -> None:
    async def show(name: str = "") -> JSONResponse:
        if name:
            registry.get(name)
        return JSONResponse(switches.trace_settings())

    async def change(request: Request, name: str = "") -> JSONResponse:
        if name:
            registry.get(name)
        return JSONResponse(switches.change_trace_settings(await read_object(request)))

    add = app.section(_TAG)
    body = JsonBody(dict[str, Any], "Only OFF is possible.", {"trace_level": ["OFF"]})
    one, unknown = "/v2/models/{name}", (404,)
    for path, prefix, errors in (("/v2", "v2_", ()), (one, "v2_model_", unknown)):
        path_, text = f"{path}/trace/setting", "Nothing is traced in Triton's way."
        add(show, f"get {path_}", f"{prefix}trace", text, TraceSettings, errors)
        text, refused = "Accepts that nothing is traced.", (400, 413, *errors)
        add(change, f"post {path_}", f"{prefix}setTrace", text, TraceSettings, refused, body=body)


def _add_log_settings(app: Application) -> None:
    async def show() -> JSONResponse:
        return JSONResponse(switches.log_settings())

    async def change(request: Request) -> JSONResponse:
        if request.client is not None and not HostPort(*request.client).is_loopback:
            raise MethodNotAllowed(
                message="Only clients on the server's machine may change the log here; "
                "the management address has PUT /logging."
            )
        return JSONResponse(switches.change_log_settings(await read_object(request)))

    add, text = app.section(_TAG), "How much the server logs, in Triton's terms."
    add(show, "get /v2/logging", "v2_log", text, LogSettings)
    text, errors = "Change how much the server logs.", (400, 405, 413)
    body = JsonBody(dict[str, Any], "What is to change.", {"log_verbose_level": 1})
    add(change, "post /v2/logging", "v2_setLog", text, LogSettings, errors, body=body)
