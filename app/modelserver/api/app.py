"""The FastAPI application of each listener: everything that is not a hot route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from modelserver import __version__
from modelserver.api.answers import JSON, pretty
from modelserver.api.docs_page import CONTENT_SECURITY_POLICY, CONTENT_TYPE, render_docs
from modelserver.api.management import management_routes
from modelserver.api.openapi import describe_listener, describe_model, describe_model_management
from modelserver.errors import MethodNotAllowed, ModelServerError, ResourceNotFound, ServiceUnavailable
from modelserver.models.registry import Registry
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


def build_app(roles: set[Role], services: Services) -> FastAPI:
    """The application of a listener that plays these roles; one address may play several."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.include_router(_descriptions(roles, services.registry))
    if "inference" in roles:
        app.include_router(_inference(services.registry))
    if "management" in roles:
        app.include_router(management_routes(services.registry, model_api=services.settings.enable_model_api))
    if "metrics" in roles:
        app.include_router(_metrics(services.metrics))
    app.add_exception_handler(HTTPException, _raise_ours)
    app.add_exception_handler(ModelServerError, _raise)
    return app


def _inference(registry: Registry) -> APIRouter:
    router = APIRouter()

    async def ping() -> Response:
        """Reference 6.2."""
        healthy = registry.healthy
        return Response(
            pretty({"status": "Healthy" if healthy else "Unhealthy"}), 200 if healthy else 500, media_type=JSON
        )

    async def v1_models() -> JSONResponse:
        return JSONResponse({"models": registry.names()})

    async def v1_model(name: str) -> JSONResponse:
        if not registry.get(name).pool.ready:
            raise ServiceUnavailable(f"Model with name {name} is not ready.")
        return JSONResponse({"name": name, "ready": True})

    async def model_description(name: str, version: str | None = None) -> Response:
        registry.get(name.partition(":")[0], version)
        return _json(describe_model(name.partition(":")[0], version))

    router.add_api_route("/ping", ping, methods=ANY_METHOD)
    router.add_api_route("/v1/models", v1_models, methods=["GET"])
    router.add_api_route("/v1/models/{name}", v1_model, methods=["GET"])
    for path in ("/predictions/{name}", "/predictions/{name}/{version}", "/v1/models/{name}"):
        router.add_api_route(path, model_description, methods=["OPTIONS"])
    return router


def _metrics(metrics: ServerMetrics) -> APIRouter:
    router = APIRouter()

    async def render(request: Request) -> Response:
        body = metrics.render(request.query_params.getlist("name[]"))
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    for path in ("/metrics", "/metrics/{rest:path}"):
        router.add_api_route(path, render, methods=ANY_METHOD)
    return router


def _descriptions(roles: set[Role], registry: Registry) -> APIRouter:
    router = APIRouter()
    kind: Any = "all" if {"inference", "management"} <= roles else next(iter(sorted(roles)))
    document = describe_listener(kind, __version__)

    async def describe() -> Response:
        return _json(document)

    async def docs() -> Response:
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "content-type": CONTENT_TYPE}
        return Response(render_docs(document), headers=headers)

    async def describe_management(name: str, version: str | None = None) -> Response:
        registry.get(name, version)
        return _json(describe_model_management(name, version))

    router.add_api_route("/", describe, methods=["OPTIONS"])
    router.add_api_route("/api-description", describe, methods=[*ANY_METHOD, "OPTIONS"])
    router.add_api_route("/openapi.json", describe, methods=["GET"])
    router.add_api_route("/docs", docs, methods=["GET"])
    if "management" in roles:
        for path in ("/models/{name}", "/models/{name}/{version}"):
            router.add_api_route(path, describe_management, methods=["OPTIONS"])
    return router


def _json(document: Any) -> Response:
    return Response(pretty(document), media_type=JSON)


async def _raise(request: Request, error: Exception) -> NoReturn:
    """The edge renders our errors, for the application as for everything around it."""
    raise error


async def _raise_ours(request: Request, error: Exception) -> NoReturn:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    if error.status_code == 405:
        raise MethodNotAllowed((error.headers or {}).get("Allow", "")) from error
    raise ResourceNotFound from error
