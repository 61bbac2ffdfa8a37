"""Building blocks of the OpenAPI operations, which are defined beside the routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from modelserver.surface.http.answers import JSON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi import FastAPI

Document: TypeAlias = dict[str, Any]
Endpoint: TypeAlias = Callable[..., Any]

METHODS = ("get", "head", "post", "put", "patch", "delete")
_WITHOUT_BODY = frozenset({"get", "head", "delete"})
# Marks operations that the HTML page omits: another method of the path does the same.
UNLISTED = "x-unlisted"

TEXT: Document = {"type": "string"}
FLAG: Document = {"type": "boolean"}
WHOLE: Document = {"type": "integer"}
COUNT: Document = {"type": "integer", "minimum": 0}
TIME: Document = {"type": "string", "format": "date-time"}
BINARY: Document = {"type": "string", "format": "binary"}
ANYTHING: Document = {"type": "object", "additionalProperties": True}
SIZES: Document = {"type": "array", "items": {"type": "integer", "format": "int64"}}

_ERRORS = {
    400: "The request is invalid.",
    403: "The default version cannot be removed while others exist.",
    404: "No such model or version.",
    405: "The method is not allowed, or this API is turned off.",
    408: "Timed out while cleaning up.",
    409: "This name and version are already registered.",
    413: "The body is larger than max_request_size.",
    500: "The handler or its worker failed.",
    503: "The queue is full, no worker serves the model, or the handler raised.",
    504: "The deadline passed.",
    507: "A worker ran out of memory.",
}


def add(app: FastAPI, path: str, endpoint: Endpoint, **operations: Document) -> None:
    """Adds a route; ``operations`` are by method."""
    app.add_api_route(path, endpoint, methods=list(operations), openapi_extra=operations)


def operation(
    tag: str,
    operation_id: str,
    summary: str,
    responses: Document,
    *,
    parameters: Iterable[Document] = (),
    body: Document | None = None,
) -> Document:
    """What one method of a path does. Parameters in the path are derived from it."""
    described: Document = {"tags": [tag], "summary": summary, "operationId": operation_id}
    if parameters := list(parameters):
        described["parameters"] = parameters
    if body is not None:
        described["requestBody"] = body
    return {**described, "responses": responses}


def by_any_method(method: str, described: Document, *more: str) -> dict[str, Document]:
    """The operations of a path where any method does the same; the HTML page shows only ``method``."""
    others = [other for other in (*METHODS, *more) if other != method]
    shown = {**described, "description": "Any other method does the same."}
    return {method: shown, **{other: by_other_method(other, described) for other in others}}


def by_other_method(method: str, described: Document) -> Document:
    """The same operation with another method, which the HTML page omits."""
    also = {**described, "operationId": f"{described['operationId']}_{method}", UNLISTED: True}
    if method in _WITHOUT_BODY:
        also.pop("requestBody", None)
    return also


def description(operation_id: str, summary: str, *statuses: int) -> Document:
    """An operation that answers with an OpenAPI document."""
    responses = answers("An OpenAPI document.", {"type": "object"}, *statuses)
    return operation("Description", operation_id, summary, responses)


def own_description(operation_id: str) -> Document:
    """OPTIONS on a path that names a model."""
    return {**description(f"{operation_id}_options", "The API of this model.", 404), UNLISTED: True}


def query(name: str, type_: str, about: str, *, example: Any = None, **schema: Any) -> Document:
    """A query parameter; ``schema`` restricts its values further."""
    parameter = {"in": "query", "name": name, "description": about, "schema": {"type": type_, **schema}}
    return parameter if example is None else {**parameter, "example": example}


def json_body(about: str, schema: Document, *, example: Document, required: bool = True) -> Document:
    """A body in JSON."""
    content = {JSON: {"schema": schema, "example": example}}
    return {"description": about, "required": required, "content": content}


def answer(about: str, schema: Document) -> Document:
    """An answer in JSON."""
    return {"description": about, "content": {JSON: {"schema": schema}}}


def answers(about: str, schema: Document, *statuses: int) -> Document:
    """The answer with status 200, and the errors of these statuses."""
    return {"200": answer(about, schema), **errors(*statuses)}


def errors(*statuses: int) -> Document:
    """The errors of these statuses."""
    return {str(status): answer(_ERRORS[status], ref("Error")) for status in statuses}


def ref(schema: str) -> Document:
    """A reference to one of the shared schemas."""
    return {"$ref": f"#/components/schemas/{schema}"}


def record(properties: Document, *required: str, **more: Any) -> Document:
    """An object; ``required`` are the names that are always present."""
    needed: Document = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, **more}


def array(items: Document, about: str = "") -> Document:
    """A list."""
    return {"type": "array", "items": items, **({"description": about} if about else {})}


def told(schema: Document, about: str) -> Document:
    """The schema with a description."""
    return {**schema, "description": about}


STATUS = ref("Status")
WARNINGS = array(TEXT, "Notes for the author of the archive or the request; absent without any.")
SCHEMAS: Document = {
    "Error": record(
        {
            "code": told(WHOLE, "The HTTP status."),
            "type": told(TEXT, "The kind of error."),
            "message": TEXT,
            "error": told(TEXT, "The message again, on V1 and V2 routes."),
            "request_id": told(TEXT, "With `expose_errors`, where a handler failed."),
            "batchId": told(TEXT, "On V1 routes of models that batch; empty if the request was in no batch."),
            "predictions": {**array({}, "Null, with `batchId`."), "nullable": True},
        },
        description="What went wrong. V2 routes may send `error` alone.",
    ),
    "Status": record({"status": TEXT, "warnings": WARNINGS}, "status"),
}
