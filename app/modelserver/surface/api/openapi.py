"""The OpenAPI 3.0.1 documents of the listeners (reference 4.5, 6.3), assembled from those of the routes."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi.routing import APIRoute
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver import __version__
from modelserver.ext.rollout import routes as traffic
from modelserver.ext.triton import routes as triton
from modelserver.ext.workflows import routes as workflows
from modelserver.surface.api import (
    describe,
    descriptions,
    management,
    metadata,
    predictions,
    repository,
)
from modelserver.surface.api.descriptions import (
    TEXT,
    add,
    by_any_method,
    description,
    operation,
    own_description,
)
from modelserver.surface.api.docs_page import CONTENT_SECURITY_POLICY, CONTENT_TYPE, render_docs
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from fastapi import FastAPI
    from starlette.routing import BaseRoute

    from modelserver.engine.wire.messages import Annotations
    from modelserver.models.options.signature import Signature
    from modelserver.models.registry import Registry
    from modelserver.surface.api.descriptions import Document

_INFO = {
    "title": "modelserver APIs",
    "description": "modelserver serves PyTorch models, with TorchServe's APIs and batching built in.",
}
_ROOMS = (descriptions, management, traffic, describe, repository, predictions, metadata, triton, workflows)
_SCHEMAS = {name: schema for room in _ROOMS for name, schema in room.SCHEMAS.items()}

# Name, description and example of each parameter in a path.
_WITHIN_PATHS = {
    "name": ("model_name", "The model's name.", "resnet-152"),
    "version": ("model_version", "The version.", "1.0"),
    "region": ("region_name", "The name of the shared memory.", "tensors"),
    "workflow": ("workflow_name", "The workflow's name.", "my-workflow"),
    "rest": ("url_path", "What follows; it may have several segments.", "details"),
}
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")


def add_descriptions(app: FastAPI, roles: AbstractSet[str], registry: Registry) -> None:
    """Adds the routes that describe all routes, including those added later, and each model."""

    @cache
    def document() -> Document:
        return describe_routes(app.routes, __version__)

    async def describe_all() -> Response:
        return _json(document())

    async def docs(request: Request) -> Response:
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "content-type": CONTENT_TYPE}
        return Response(render_docs(document(), base_url=str(request.base_url)), headers=headers)

    async def of_inference(name: str, version: str | None = None) -> Response:
        model = registry.get(name.partition(":")[0], version)
        return _json(
            describe_model(model.name, version, signature=model.signature, annotations=model.annotations)
        )

    async def of_management(name: str, version: str | None = None) -> Response:
        registry.get(name, version)
        return _json(describe_model_management(name, version))

    this = "This document."
    old = {**description("api_description", "This document; deprecated, use OPTIONS /."), "deprecated": True}
    page = {"200": {"description": "A page.", "content": {"text/html": {"schema": TEXT}}}}
    add(app, "/", describe_all, options=description("apiDescription", this))
    add(app, "/api-description", describe_all, **by_any_method("get", old, "options"))
    add(app, "/openapi.json", describe_all, get=description("openapi", this))
    add(app, "/docs", docs, get=operation("Description", "docs", "This document, for people.", page))
    if "management" in roles:
        for path, name in (("/models/{name}", "model"), ("/models/{name}/{version}", "version")):
            add(app, path, of_management, options=own_description(f"management_{name}"))
    if "inference" in roles:
        add(app, "/v1/models/{name}", of_inference, options=own_description("v1_model"))
        predictions.add_predictions(app, of_inference, describe_all)


def describe_routes(routes: Iterable[BaseRoute], version: str) -> Document:
    """The document of the listener that has these routes; ``version`` is the server's."""
    paths: Document = {}
    for route in routes:
        if isinstance(route, APIRoute) and route.openapi_extra:
            path, within = _described_path(route.path)
            for method, operation in route.openapi_extra.items():
                parameters = [*within, *operation.get("parameters", ())]
                described = {**operation, "parameters": parameters} if parameters else operation
                paths.setdefault(path, {})[method] = described
    return _document({**_INFO, "version": version}, paths)


def _described_path(path: str) -> tuple[str, list[Document]]:
    """The path with the documented names of its parameters, and their descriptions."""
    within = []

    def renamed(found: re.Match[str]) -> str:
        if found[1] not in _WITHIN_PATHS:
            return found[2]
        name, about, example = _WITHIN_PATHS[found[1]]
        parameter = {"in": "path", "required": True, "name": name, "description": about}
        within.append({**parameter, "schema": TEXT, "example": example})
        return f"{{{name}}}"

    return _PARAMETER.sub(renamed, path), within


def describe_model(
    name: str,
    version: str | None = None,
    *,
    signature: Signature | None = None,
    annotations: Annotations | None = None,
) -> Document:
    """The document of one model's inference API (reference 6.3), with its actual paths.

    With a signature, its V2 requests and answers are typed; with ``annotations`` of its handler, the others.
    """
    segment = _segment(name)
    path = f"/predictions/{segment}" + (f"/{_segment(version)}" if version else "")
    v2 = f"/v2/models/{segment}" + (f"/versions/{_segment(version)}" if version else "")
    paths = {
        path: {"post": predictions.predict("predictions", "Predict with this model.", annotations)},
        f"/v1/models/{segment}:predict": {
            "post": predictions.predict_v1("v1_predict", "predict", annotations)
        },
        f"{v2}/infer": {"post": predictions.predict_v2("v2_infer", "infer", signature)},
    }
    document = _document({"title": f"RESTful API for: {name}", "version": "1.0.0"}, paths)
    document["components"]["schemas"] |= predictions.schemas_of(annotations)
    return document


def describe_model_management(name: str, version: str | None = None) -> Document:
    """The document of one model's management API, the answer to OPTIONS (reference 5.1)."""
    path = f"/models/{_segment(name)}"
    paths = {path: management.describe_operations("")}
    if version:
        path = f"{path}/{_segment(version)}"
        operations = management.describe_operations("version_")
        paths = {path: operations, f"{path}/set-default": {"put": management.SET_DEFAULT}}
    return _document({"title": f"RESTful Management API for: {name}", "version": "1.0.0"}, paths)


def _document(info: Document, paths: Document) -> Document:
    whole = {"openapi": "3.0.1", "info": info, "paths": paths, "components": {"schemas": _SCHEMAS}}
    return copy.deepcopy(whole)


def _json(document: Document) -> Response:
    return Response(pretty(document), media_type=JSON)


def _segment(name: str) -> str:
    """``name`` as one segment of a path; unescaped braces would be a template."""
    return quote(name, safe="")
