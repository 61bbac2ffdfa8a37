"""The REST routes except those of inference: what serves each of them, and the models that describe it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import JSONResponse, Response

from modelserver.engine.telemetry.logs import LEVELS, log_level
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.prometheus import CONTENT_TYPE
from modelserver.errors import BadRequest, ConfigError, InternalError, ResourceNotFound, ServiceUnavailable
from modelserver.models.registry import Registry
from modelserver.surface.api import models
from modelserver.surface.api.application import ANY_METHOD, TEXT, Application, JsonBody, Operation
from modelserver.surface.api.management import ManagementApi
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.auth.scopes import TOKEN_PATH, Scope
from modelserver.surface.auth.verifier import InvalidKey, RequiredTokens
from modelserver.surface.http.answers import JSON, pretty

_RENEWABLE = {scope.value: scope for scope in (Scope.MANAGEMENT, Scope.INFERENCE)}
_V1_READY = Operation(
    "Inference",
    "get /v1/models/{name}",
    "v1_modelReady",
    "Readiness of a model, V1 protocol.",
    models.V1Ready,
    (404, 503),
)


def add_inference(app: Application, registry: Registry) -> None:
    """Health, and V1's lists and readiness."""

    async def ping() -> Response:
        """Reference 6.2."""
        healthy = registry.healthy
        body = pretty({"status": "Healthy" if healthy else "Unhealthy"})
        return Response(body, 200 if healthy else 500, media_type=JSON)

    async def v1_models() -> JSONResponse:
        return JSONResponse({"models": registry.names()})

    async def v1_model(name: str) -> JSONResponse:
        if not registry.is_ready(name):
            raise ServiceUnavailable(f"Model with name {name} is not ready.")
        return JSONResponse({"name": name, "ready": True})

    add = app.section("Health")
    unhealthy = (models.Status, "Some model has fewer healthy workers than its minimum.")
    about, always = "Health of the server.", ("any", "options")
    add(ping, "get /ping", "ping", about, models.Status, responses={500: unhealthy}, others=always)
    add = app.section("Inference")
    add(v1_models, "get /v1/models", "v1_listModels", "List the models, V1 protocol.", models.V1Models)
    app.add(v1_model, _V1_READY)


def add_liveness(app: Application) -> None:
    """V1's liveness route (kserve reference 4 and 7.3), which TorchServe refuses."""

    async def alive() -> JSONResponse:
        return JSONResponse({"status": "alive"})

    add = app.section("Health")
    add(alive, "get /", "v1_alive", "Whether the server lives, V1 protocol.", models.Status)


def add_health(app: Application, registry: Registry) -> None:
    """The probes of every listener."""

    async def live() -> Response:
        return Response(pretty({"status": "Live"}), media_type=JSON)

    async def ready() -> Response:
        states = registry.readiness()
        if missing := states.count(False):
            raise ServiceUnavailable(f"Not ready: {missing} of {len(states)} models have no loaded worker.")
        return Response(pretty({"status": "Ready"}), media_type=JSON)

    add = app.section("Health")
    add(live, "get /livez", "livez", "Whether the server lives.", models.Status, others=("head",))
    about = "Whether all models are ready."
    add(ready, "get /readyz", "readyz", about, models.Status, (503,), others=("head",))


def add_management(app: Application, api: ManagementApi) -> None:
    """Models (reference 5)."""
    add, example = app.section("Management"), {"url": "resnet-152.mar", "initial_workers": 1}
    add(
        api.register,
        "post /models",
        "registerModel",
        "Register a model. The url comes from the query or from a JSON body.",
        models.Status,
        (400, 404, 405, 409, 500, 507),
        "Registered, with its workers ready.",
        responses={
            202: (models.Status, "Registered; its workers are starting."),
            206: (models.Status, "Registered, with fewer workers than asked for so far."),
        },
        query=models.RegisterRequest,
        body=JsonBody.instead_of_query(models.RegisterRequest, example),
    )
    about = "List the registered models."
    add(api.list_models, "get /models", "listModels", about, models.ModelList, query=models.PageQuery)
    endpoints: tuple[Callable[..., Any], ...] = (api.describe, api.scale, api.unregister)
    for path, version in (("/models/{name}", ""), ("/models/{name}/{version}", "version_")):
        for endpoint, operation in zip(endpoints, model_operations(path, version), strict=True):
            app.add(endpoint, operation)
    app.add(api.set_default, set_default("/models/{name}/{version}"))
    app.add(api.kserve_ready, _V1_READY)


def model_operations(path: str, prefix: str) -> Iterator[Operation]:
    """What can be done with a model; ``prefix`` is for the names of those on a version."""
    yield Operation(
        "Management",
        f"get {path}",
        f"{prefix}describeModel",
        "Describe a model: settings, queue, workers.",
        list[models.ModelDescription],
        (404, 500, 503),
        "The version, or each version for `all`.",
        query=models.DescribeQuery,
    )
    yield Operation(
        "Management",
        f"put {path}",
        f"{prefix}setAutoScale",
        "Scale a model's workers, change how it is served, or replace its archive.",
        models.Status,
        (400, 404, 405, 409, 500, 507),
        "The workers are ready, the settings changed, or another archive serves.",
        responses={
            202: (models.Status, "The change has begun."),
            206: (models.Status, "Fewer workers than asked for so far."),
        },
        query=models.ScaleVersionQuery if prefix else models.ScaleQuery,
    )
    about, errors = "Unregister a model and free its workers.", (403, 404, 405, 408, 409, 500)
    yield Operation("Management", f"delete {path}", f"{prefix}unregisterModel", about, models.Status, errors)


def set_default(path: str) -> Operation:
    """Describes the route that makes the version at this path the default."""
    about = "Make a version the default."
    return Operation("Management", f"put {path}/set-default", "setDefault", about, models.Status, (404,))


def add_logging_level(app: Application) -> None:
    """Adds ``GET /logging`` and ``PUT /logging?level=``."""

    async def show() -> Response:
        return Response(pretty({"level": log_level()}), media_type=JSON)

    async def change(request: Request) -> Response:
        level = (Parameters.of_query(request).text("level") or "").lower()
        if level not in LEVELS:
            raise BadRequest(f"level={level[:40]}: one of {', '.join(LEVELS)} is needed")
        return Response(pretty({"level": log_level(level)}), media_type=JSON)

    add, about = app.section("Management"), "Change how much the server logs."
    add(show, "get /logging", "getLogLevel", "How much the server logs.", models.LogLevel)
    add(change, "put /logging", "setLogLevel", about, models.LogLevel, (400,), query=models.LogLevelQuery)


def add_token_renewal(app: Application, tokens: RequiredTokens | None) -> None:
    """``/token`` replaces a token (reference 16.2); the API token was checked before."""

    async def renew(request: Request) -> Response:
        if tokens is None:
            raise ResourceNotFound
        scope = _RENEWABLE.get(request.query_params.get("type", ""))
        if scope is None:
            raise InvalidKey(Scope.API)
        try:
            tokens.renew(scope)
        except ConfigError as error:
            raise InternalError(str(error)) from error
        # As in TorchServe, the new token is read from the file.
        return Response(b"\n", media_type=JSON)

    app.section("Management")(
        renew,
        f"get {TOKEN_PATH}",
        "renewToken",
        "Replace a token; needs the API token. 404 without tokens.",
        None,
        (400, 404, 409),
        "An empty line; the new token is in key_file.json.",
        query=models.TokenQuery,
        others=("any", "options"),
    )


def add_metrics(app: Application, metrics: ServerMetrics | None) -> None:
    """Metrics for Prometheus; ``metrics`` is None if another listener has them."""
    rendering = asyncio.Lock()

    async def render(request: Request) -> Response:
        if metrics is None:
            raise ResourceNotFound
        pieces = []
        # One answer at a time, as many would take long together in each turn of the loop.
        async with rendering:
            for piece in metrics.pieces(request.query_params.getlist("name[]")):
                pieces.append(piece)
                await asyncio.sleep(0)
        return Response(b"".join(pieces), media_type=CONTENT_TYPE)

    text = {"description": "Metrics in Prometheus' text format.", "content": {CONTENT_TYPE: {"schema": TEXT}}}
    elsewhere = "This listener has no metrics: they are at metrics_address."
    app.section("Metrics")(
        render,
        "get /metrics",
        "metrics",
        "Metrics.",
        responses={404: elsewhere},
        query=models.MetricsQuery,
        others=("any",),
        more={"responses": {"200": text}},
    )
    if metrics is not None:
        app.add_api_route("/metrics/{rest:path}", render, methods=[*ANY_METHOD])
