"""The routes that describe all others, as an OpenAPI document and as a page (reference 4.5, 6.3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import HTMLResponse, Response

from modelserver.surface.api.application import ANY_METHOD
from modelserver.surface.api.docs_page import CONTENT_SECURITY_POLICY, CONTENT_TYPE, render_docs
from modelserver.surface.api.models import AnyObject
from modelserver.surface.api.predictions import (
    add_model_description,
    add_predictions,
    describe_model,
    describe_model_management,
)
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from modelserver.models.registry import Registry
    from modelserver.surface.api.application import Application, Document


def add_descriptions(app: Application, roles: AbstractSet[str], registry: Registry) -> None:
    """Adds the routes that describe all routes, including those added later, and each model."""

    async def describe_all() -> Response:
        return _json(await asyncio.to_thread(app.openapi))

    async def docs(request: Request) -> Response:
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "content-type": CONTENT_TYPE}
        document = await asyncio.to_thread(app.openapi)
        return Response(render_docs(document, base_url=str(request.base_url)), headers=headers)

    async def of_inference(name: str, version: str | None = None) -> Response:
        model = registry.get(name.partition(":")[0], version)
        return _json(
            await asyncio.to_thread(describe_model, model.name, version, model.signature, model.annotations)
        )

    async def of_management(name: str, version: str | None = None) -> Response:
        registry.get(name, version)
        return _json(await asyncio.to_thread(describe_model_management, name, version))

    add, this = app.section("Description"), "This document."
    about, always = "This document; deprecated, use OPTIONS /.", (*ANY_METHOD, "options")
    path = "get /api-description"
    add(describe_all, "options /", "apiDescription", this, AnyObject)
    add(describe_all, path, "api_description", about, AnyObject, others=always, deprecated=True)
    add(describe_all, "get /openapi.json", "openapi", this, AnyObject)
    add(docs, "get /docs", "docs", "This document, for people.", HTMLResponse)
    if "management" in roles:
        for path, name in (("/models/{name}", "model"), ("/models/{name}/{version}", "version")):
            add_model_description(app, of_management, path, f"management_{name}")
    if "inference" in roles:
        add_model_description(app, of_inference, "/v1/models/{name}", "v1_model")
        add_predictions(app, of_inference, describe_all)


def _json(document: Document) -> Response:
    return Response(pretty(document), media_type=JSON)
