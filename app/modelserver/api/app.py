"""The FastAPI application of each listener: everything that is not a hot route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from modelserver import __version__
from modelserver.api.docs_page import CONTENT_SECURITY_POLICY, CONTENT_TYPE, render_docs
from modelserver.api.management import add_management
from modelserver.api.metadata import add_health, add_v2
from modelserver.api.openapi import describe_listener, describe_model, describe_model_management
from modelserver.api.repository import add_repository
from modelserver.api.tokens import add_token_renewal
from modelserver.api.workflows import add_workflow_inference, add_workflow_management
from modelserver.auth.scopes import TOKEN_PATH
from modelserver.errors import (
    InternalError,
    MethodNotAllowed,
    ModelServerError,
    ResourceNotFound,
    ServiceUnavailable,
)
from modelserver.http.answers import JSON, error_body, is_kserve, pretty

if TYPE_CHECKING:
    from modelserver.auth.keeper import TokenKeeper
    from modelserver.http.aside import Aside
    from modelserver.http.intake import Intake
    from modelserver.models.registry import Registry
    from modelserver.payloads.log import PayloadLog
    from modelserver.settings.settings import Settings
    from modelserver.telemetry.metrics import ServerMetrics

Role = Literal["inference", "management", "metrics"]

ANY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]


@dataclass(frozen=True, slots=True)
class Services:
    """What the listeners answer from."""

    registry: Registry
    metrics: ServerMetrics
    settings: Settings
    tokens: TokenKeeper | None = None
    payloads: PayloadLog | None = None
    aside: Aside | None = None
    intake: Intake | None = None


def build_app(roles: set[Role], services: Services) -> FastAPI:
    """The application of a listener that plays these roles; one address may play several."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    _add_descriptions(app, roles, services.registry)
    add_health(app, services.registry)
    if "inference" in roles:
        _add_inference(app, services.registry)
        if services.settings.ts_open_inference_protocol:
            add_v2(app, services.registry)
        add_workflow_inference(app)
        if not services.settings.as_torchserve:
            _add_liveness(app)
    if "management" in roles:
        add_management(app, services.registry, model_api=services.settings.enable_model_api)
        add_workflow_management(app)
        if services.tokens is not None:
            add_token_renewal(app, services.tokens, [*ANY_METHOD, "OPTIONS"])
        else:
            app.add_api_route(TOKEN_PATH, _not_here, methods=[*ANY_METHOD, "OPTIONS"])
    if roles & {"inference", "management"}:
        add_repository(app, services.registry, services.settings, everybody="management" in roles)
    if "metrics" in roles:
        _add_metrics(app, services.metrics)
    else:
        app.add_api_route("/metrics", _not_here, methods=ANY_METHOD)
    app.state.as_torchserve = services.settings.as_torchserve
    for kind in (HTTPException, ModelServerError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


def _add_inference(app: FastAPI, registry: Registry) -> None:
    async def ping() -> Response:
        """Reference 6.2."""
        healthy = registry.healthy
        return Response(
            pretty({"status": "Healthy" if healthy else "Unhealthy"}),
            200 if healthy else 500,
            media_type=JSON,
        )

    async def v1_models() -> JSONResponse:
        return JSONResponse({"models": registry.names()})

    async def v1_model(name: str) -> JSONResponse:
        if not registry.get(name).pool.ready:
            raise ServiceUnavailable(f"Model with name {name} is not ready.")
        return JSONResponse({"name": name, "ready": True})

    async def model_description(name: str, version: str | None = None) -> Response:
        model = registry.get(name.partition(":")[0], version)
        return _json(describe_model(model.name, version, signature=model.options.signature))

    app.add_api_route("/ping", ping, methods=[*ANY_METHOD, "OPTIONS"])
    app.add_api_route("/v1/models", v1_models, methods=["GET"])
    app.add_api_route("/v1/models/{name}", v1_model, methods=["GET"])
    for path in (
        "/predictions/{name}",
        "/predictions/{name}/{version}",
        "/predictions/{name}/{version}/{rest:path}",
        "/explanations/{name}",
        "/explanations/{name}/{version}",
        "/v1/models/{name}",
        "/models/{name}/invoke",
        "/{name}/predict",
        "/{name}/{version}/predict",
        "/v2/models/{name}/infer",
        "/v2/models/{name}/explain",
        "/v2/models/{name}/versions/{version}/infer",
        "/v2/models/{name}/versions/{version}/explain",
    ):
        app.add_api_route(path, model_description, methods=["OPTIONS"])


def _add_liveness(app: FastAPI) -> None:
    async def alive() -> JSONResponse:
        """How V1 clients ask whether a server lives (kserve reference 4 and 7.3); TorchServe refuses it."""
        return JSONResponse({"status": "alive"})

    app.add_api_route("/", alive, methods=["GET"])


def _add_metrics(app: FastAPI, metrics: ServerMetrics) -> None:
    async def render(request: Request) -> Response:
        body = metrics.render(request.query_params.getlist("name[]"))
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    for path in ("/metrics", "/metrics/{rest:path}"):
        app.add_api_route(path, render, methods=ANY_METHOD)


async def _not_here() -> Response:
    """What another listener has, or another setting would bring."""
    raise ResourceNotFound


def _add_descriptions(app: FastAPI, roles: set[Role], registry: Registry) -> None:
    kind: Any = "all" if {"inference", "management"} <= roles else next(iter(sorted(roles)))
    document = describe_listener(kind, __version__)

    async def describe() -> Response:
        return _json(document)

    async def docs(request: Request) -> Response:
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "content-type": CONTENT_TYPE}
        return Response(render_docs(document, base_url=str(request.base_url)), headers=headers)

    async def describe_management(name: str, version: str | None = None) -> Response:
        registry.get(name, version)
        return _json(describe_model_management(name, version))

    app.add_api_route("/", describe, methods=["OPTIONS"])
    app.add_api_route("/api-description", describe, methods=[*ANY_METHOD, "OPTIONS"])
    app.add_api_route("/openapi.json", describe, methods=["GET"])
    app.add_api_route("/docs", docs, methods=["GET"])
    if "inference" in roles:
        app.add_api_route("/invocations", describe, methods=["OPTIONS"])
    if "management" in roles:
        for path in ("/models/{name}", "/models/{name}/{version}"):
            app.add_api_route(path, describe_management, methods=["OPTIONS"])


def _json(document: Any) -> Response:
    return Response(pretty(document), media_type=JSON)


async def _answer_error(request: Request, error: Exception) -> Response:
    kserve = is_kserve(request.url.path)
    if isinstance(error, HTTPException):
        error = MethodNotAllowed(_allowed(request)) if error.status_code == 405 else ResourceNotFound()
    elif not isinstance(error, ModelServerError):
        error = InternalError()
    if isinstance(error, (MethodNotAllowed, ResourceNotFound)):
        # Whose client it is that missed its path nobody knows.
        kserve = kserve or not request.app.state.as_torchserve
    status, body = error_body(error, kserve=kserve)
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(body, status, headers, JSON)


def _allowed(request: Request) -> str:
    """The methods of all routes for the path; the framework names those of the first only."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))
