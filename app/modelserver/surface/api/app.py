"""The FastAPI application of each listener: everything except the hot routes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response
from starlette.routing import Match, Route

from modelserver.engine.telemetry.prometheus import CONTENT_TYPE
from modelserver.errors import InternalError, MethodNotAllowed, ModelServerError, ResourceNotFound
from modelserver.ext.triton.routes import add_triton
from modelserver.surface.api.descriptions import (
    METHODS,
    TEXT,
    add,
    answer,
    by_any_method,
    operation,
    query,
    ref,
)
from modelserver.surface.api.management import add_management
from modelserver.surface.api.metadata import add_health, add_v2
from modelserver.surface.api.openapi import add_descriptions
from modelserver.surface.api.predictions import add_inference, add_liveness
from modelserver.surface.api.repository import add_repository
from modelserver.surface.api.tokens import add_token_renewal
from modelserver.surface.http.answers import JSON, error_body, is_kserve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelserver.engine.telemetry.metrics import ServerMetrics
    from modelserver.surface.api.services import AddRoutes, Role, Services


def build_app(roles: set[Role], services: Services, added: Iterable[AddRoutes] = ()) -> FastAPI:
    """The application of a listener with these roles; one address may have several.

    ``added`` add the routes of extensions.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    registry, settings = services.registry, services.settings
    if "inference" in roles:
        if not settings.as_torchserve:
            add_liveness(app)
        add_inference(app, registry)
        if settings.ts_open_inference_protocol:
            add_triton(app, registry, services.shared)
            add_v2(app, registry, settings)
    if "management" in roles:
        add_management(app, registry, model_api=settings.enable_model_api)
        add_token_renewal(app, services.tokens)
    if roles & {"inference", "management"}:
        add_repository(app, registry, settings, everybody="management" in roles)
    add_descriptions(app, roles, registry)
    for add_routes in added:
        add_routes(app, services)
    add_health(app, registry)
    _add_metrics(app, services.metrics if "metrics" in roles else None)
    app.state.as_torchserve = settings.as_torchserve
    for kind in (HTTPException, ModelServerError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


def _add_metrics(app: FastAPI, metrics: ServerMetrics | None) -> None:
    """Adds the route; ``metrics`` is None if another listener has them."""
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

    names = query("name[]", "array", "Only metrics of these names; may be repeated.", items=TEXT)
    content = {CONTENT_TYPE: {"schema": TEXT}}
    elsewhere = answer("This listener has no metrics: they are at metrics_address.", ref("Error"))
    responses = {
        "200": {"description": "Metrics in Prometheus' text format.", "content": content},
        "404": elsewhere,
    }
    parameters = [{**names, "style": "form", "explode": True}]
    described = operation("Metrics", "metrics", "Metrics.", responses, parameters=parameters)
    add(app, "/metrics", render, **by_any_method("get", described))
    if metrics is not None:
        app.add_api_route("/metrics/{rest:path}", render, methods=[*METHODS])


async def _answer_error(request: Request, error: Exception) -> Response:
    kserve = is_kserve(request.url.path)
    if isinstance(error, HTTPException):
        error = MethodNotAllowed(_allowed(request)) if error.status_code == 405 else ResourceNotFound()
    elif not isinstance(error, ModelServerError):
        error = InternalError()
    if isinstance(error, (MethodNotAllowed, ResourceNotFound)):
        # The protocol of a client with an unknown path is unknown.
        kserve = kserve or not request.app.state.as_torchserve
    status, body = error_body(error, kserve=kserve)
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(body, status, headers, JSON)


def _allowed(request: Request) -> str:
    """The methods of all routes for the path; the framework names only those of the first."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))
