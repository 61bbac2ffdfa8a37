"""The FastAPI application of each listener: everything except the hot routes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from starlette.exceptions import HTTPException
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response
from starlette.routing import Match, Route

from modelserver.errors import InternalError, MethodNotAllowed, ModelServerError, ResourceNotFound
from modelserver.models.registry import Registry
from modelserver.surface.api.application import Application, Document
from modelserver.surface.api.models import AnyObject
from modelserver.surface.api.predictions import (
    add_model_description,
    add_predictions,
    describe_model,
    describe_model_management,
)
from modelserver.surface.api.routes import (
    add_health,
    add_inference,
    add_liveness,
    add_logging_level,
    add_management,
    add_metrics,
    add_token_renewal,
)
from modelserver.surface.api.services import AddRoutes, Role, Services
from modelserver.surface.http.answers import JSON, KSERVE, error_body, form_of, pretty


def build_app(roles: set[Role], services: Services, added: Iterable[AddRoutes] = ()) -> Application:
    """The application of a listener with these roles; one address may have several.

    ``added`` add the routes of extensions.
    """
    app = Application()
    registry, settings = services.registry, services.settings
    # The first route that fits serves: those of extensions are more specific.
    for add_routes in added:
        add_routes(app, services)
    of_extensions, app.operations = app.operations, []
    if "inference" in roles:
        if not settings.as_torchserve:
            add_liveness(app)
        add_inference(app, registry)
    if "management" in roles:
        add_management(app, services.management)
        add_logging_level(app)
        add_token_renewal(app, services.tokens)
    add_descriptions(app, roles, registry)
    add_health(app, registry)
    add_metrics(app, services.metrics if "metrics" in roles else None)
    app.operations += of_extensions
    app.state.as_torchserve = settings.as_torchserve
    for kind in (HTTPException, ModelServerError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    form = form_of(request.url.path)
    if isinstance(error, HTTPException):
        error = MethodNotAllowed(_allowed(request)) if error.status_code == 405 else ResourceNotFound()
    elif not isinstance(error, ModelServerError):
        error = InternalError()
    if isinstance(error, (MethodNotAllowed, ResourceNotFound)):
        # The protocol of a client with an unknown path is unknown.
        form = form or ("" if request.app.state.as_torchserve else KSERVE)
    status, body = error_body(error, form=form)
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(body, status, headers, JSON)


def _allowed(request: Request) -> str:
    """The methods of all routes for the path; the framework names only those of the first."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


# The routes that describe all others, as an OpenAPI document (reference 4.5, 6.3).


def add_descriptions(app: Application, roles: AbstractSet[str], registry: Registry) -> None:
    """Adds the routes that describe all routes, including those added later, and each model."""

    async def describe_all() -> Response:
        return _json(await asyncio.to_thread(app.openapi))

    async def of_inference(name: str, version: str | None = None) -> Response:
        model = registry.get(name.partition(":")[0], version)
        return _json(
            await asyncio.to_thread(describe_model, model.name, version, model.signature, model.annotations)
        )

    async def of_management(name: str, version: str | None = None) -> Response:
        registry.get(name, version)
        return _json(await asyncio.to_thread(describe_model_management, name, version))

    add, this = app.section("Description"), "This document."
    about, always = "This document; deprecated, use OPTIONS /.", ("any", "options")
    path = "get /api-description"
    add(describe_all, "options /", "apiDescription", this, AnyObject)
    add(describe_all, path, "api_description", about, AnyObject, others=always, deprecated=True)
    add(describe_all, "get /openapi.json", "openapi", this, AnyObject)
    if "management" in roles:
        for path, name in (("/models/{name}", "model"), ("/models/{name}/{version}", "version")):
            add_model_description(app, of_management, path, f"management_{name}")
    if "inference" in roles:
        add_model_description(app, of_inference, "/v1/models/{name}", "v1_model")
        add_predictions(app, of_inference, describe_all)


def _json(document: Document) -> Response:
    return Response(pretty(document), media_type=JSON)
