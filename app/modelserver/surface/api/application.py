"""FastAPI as the application of a listener, with typed models that describe its routes.

FastAPI generates the OpenAPI document from the models, but does not check requests with them: clients of
TorchServe send parameters that fit no model, such as ``limit=abc``, and are served all the same. So an
endpoint reads the request itself, or is served before the application; an :class:`Operation` describes it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeAlias

from fastapi import Body, FastAPI, Header, Path, Query
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from starlette.responses import JSONResponse, Response

from modelserver import __version__
from modelserver.surface.api.models import Error
from modelserver.surface.http.answers import JSON

Document: TypeAlias = dict[str, Any]

ANY_METHOD = ("get", "head", "post", "put", "patch", "delete")
_WITHOUT_BODY = frozenset({"get", "head", "delete"})
# Marks operations that the HTML page omits: another method of the path does the same.
UNLISTED = "x-unlisted"
TEXT: Document = {"type": "string"}
BINARY: Document = {"type": "string", "format": "binary"}

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
# Name, description and example of each parameter in a path.
_IN_PATHS = {
    "name": ("model_name", "The model's name.", "resnet-152"),
    "version": ("model_version", "The version.", "1.0"),
    "region": ("region_name", "The name of the shared memory.", "tensors"),
    "workflow": ("workflow_name", "The workflow's name.", "my-workflow"),
    "rest": ("url_path", "What follows; it may have several segments.", "details"),
}
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
_NULL = {"type": "null"}


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A body in JSON, of a type that pydantic knows; ``more`` has other content types."""

    type: Any
    about: str
    example: Any
    required: bool = True
    more: Mapping[str, Document] = field(default_factory=dict)

    @classmethod
    def instead_of_query(cls, type: Any, example: Any) -> JsonBody:  # noqa: A002 - as the field
        """The parameters of the query, which is not read if there is a body."""
        about = "The same parameters; with a JSON body the query is not read."
        return cls(type, about, example, required=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """What one method of a path does, and the ``others`` that do the same; ``name`` is its id.

    ``others`` may have "any", for all but OPTIONS. ``result`` is the type of the response's body in JSON, a
    class of responses for another content type, or None if nothing is known of it, or if ``status`` is an
    error's; ``about`` describes the response, by default as the summary. ``more`` has what FastAPI would not
    generate.
    """

    tag: str
    line: str  # method and path: "get /models"
    name: str
    summary: str
    result: Any = None
    errors: tuple[int, ...] = ()
    about: str = ""
    status: int = 200
    # Further responses by status: type and description, or the description of an error.
    responses: Mapping[int, tuple[Any, str] | str] = field(default_factory=dict)
    query: type[BaseModel] | None = None
    headers: type[BaseModel] | None = None
    body: JsonBody | None = None
    others: tuple[str, ...] = ()
    deprecated: bool = False
    unlisted: bool = False
    more: Document = field(default_factory=dict)

    @property
    def method(self) -> str:
        return self.line.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.line.partition(" ")[2]

    @property
    def methods(self) -> list[str]:
        others = [each for other in self.others for each in (ANY_METHOD if other == "any" else (other,))]
        return [self.method, *(other for other in others if other != self.method)]

    def route(self) -> APIRoute:
        """The route that FastAPI describes; it is never served."""
        path, inputs = _described_path(self.path)
        if self.query is not None:
            inputs["query"] = Annotated[self.query, Query()]
        if self.headers is not None:
            inputs["headers"] = Annotated[self.headers, Header()]
        more = {**self.more, **({UNLISTED: True} if self.unlisted else {})}
        if self.body is not None:
            body = self.body
            inputs["body"] = Annotated[body.type, Body()]
            content = {JSON: {"example": body.example}, **body.more}
            more["requestBody"] = {"description": body.about, "required": body.required, "content": content}
        if "any" in self.others:
            more["description"] = "Any other method does the same."

        def declaration() -> None:
            """Has the parameters that the signature says."""

        kind = Parameter.KEYWORD_ONLY
        parameters = [Parameter(name, kind, annotation=each) for name, each in inputs.items()]
        declaration.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        further: dict[int | str, Document] = {
            status: _error(each) if isinstance(each, str) else {"model": each[0], "description": each[1]}
            for status, each in self.responses.items()
        }
        result: Any = Error if self.status >= 400 else self.result
        other = isinstance(result, type) and issubclass(result, Response)
        return APIRoute(
            path,
            declaration,
            methods=[self.method],
            operation_id=self.name,
            tags=[self.tag],
            summary=self.summary,
            deprecated=self.deprecated or None,
            status_code=self.status,
            response_class=result if other else Response if result is None else JSONResponse,
            response_model=None if other else result,
            response_description=self.about or self.summary,
            responses={**further, **{status: _error(_ERRORS[status]) for status in self.errors}},
            openapi_extra=more,
        )


def _error(about: str) -> Document:
    """A response with an error; a reference, as FastAPI would prepare the type for each anew."""
    return {"description": about, "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}


class Application(FastAPI):
    """The routes of a listener, and their document."""

    def __init__(self) -> None:
        super().__init__(
            title="modelserver APIs",
            description="modelserver serves PyTorch models, with TorchServe's APIs and batching built in.",
            version=__version__,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        self.operations: list[Operation] = []

    def section(self, tag: str) -> Callable[..., None]:
        """What adds an endpoint with the operation of these arguments, and this tag."""

        def add(endpoint: Callable[..., Any], *arguments: Any, **more: Any) -> None:
            self.add(endpoint, Operation(tag, *arguments, **more))

        return add

    def describe(self, tag: str, *arguments: Any, **more: Any) -> None:
        """Describes what is served before the application, by an operation of these arguments."""
        self.operations.append(Operation(tag, *arguments, **more))

    def add(self, endpoint: Callable[..., Any], operation: Operation) -> None:
        """Serves the operation's methods of its path, and describes them."""
        self.add_api_route(operation.path, endpoint, methods=operation.methods)
        self.operations.append(operation)

    def openapi(self) -> Document:
        """The OpenAPI document, with the routes that are served before the application too."""
        if self.openapi_schema is None:
            self.openapi_schema = document_of(
                self.operations, title=self.title, version=self.version, description=self.description
            )
        return self.openapi_schema


# FastAPI and pydantic complete types while a document is made: one thread at a time may do so.
_ONE_AT_A_TIME = threading.Lock()


def document_of(operations: Iterable[Operation], **info: Any) -> Document:
    """The OpenAPI 3.0.1 document of these operations (reference 4.5); for any thread."""
    with _ONE_AT_A_TIME:
        return _document_of(operations, **info)


def _document_of(operations: Iterable[Operation], **info: Any) -> Document:
    by_line = {operation.line: operation for operation in operations}
    routes = [(operation, operation.route()) for operation in by_line.values()]
    document = get_openapi(**info, openapi_version="3.0.1", routes=[route for _, route in routes])
    paths = as_openapi(document["paths"], titles=False)
    for operation, route in routes:
        item = paths[route.path_format]
        described = item[operation.method]
        # FastAPI's answer to requests that do not fit the models, which are served here.
        described["responses"].pop("422", None)
        _describe_parameters(described, operation)
        shared = {key: value for key, value in described.items() if key != "description"}
        for method in operation.methods[1:]:
            item[method] = {**shared, "operationId": f"{operation.name}_{method}", UNLISTED: True}
            if method in _WITHOUT_BODY:
                item[method].pop("requestBody", None)
    schemas = document.get("components", {}).get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = TypeAdapter(Error).json_schema()
    return {**document, "paths": paths, "components": {"schemas": as_openapi(schemas, titles=False)}}


def _described_path(path: str) -> tuple[str, dict[str, Any]]:
    """The path with the documented names of its parameters, and their types."""
    parameters = {}

    def rename(match: re.Match[str]) -> str:
        if match[1] not in _IN_PATHS:
            return match[2]
        name, about, example = _IN_PATHS[match[1]]
        parameters[name] = Annotated[str, Path(description=about, examples=[example])]
        return f"{{{name}}}"

    return _PARAMETER.sub(rename, path), parameters


def _describe_parameters(described: Document, operation: Operation) -> None:
    """Moves examples to where version 3.0 has them. What the body may have instead is not required."""
    for parameter in described.get("parameters", ()):
        schema = parameter["schema"]
        schema.pop("description", None)
        if (
            operation.body is not None
            and operation.body.type is operation.query
            and parameter["in"] == "query"
        ):
            parameter["required"] = False
        if "example" in schema:
            parameter["example"] = schema.pop("example")


def as_openapi(schema: Any, *, titles: bool = True) -> Any:
    """A JSON schema in the words of OpenAPI 3.0, which has no type null, no const and no tuples.

    Without ``titles``, those that pydantic makes of names are left out.
    """
    if isinstance(schema, list):
        return [as_openapi(each, titles=titles) for each in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {
        key: as_openapi(value, titles=titles)
        for key, value in schema.items()
        if titles or key != "title" or not isinstance(value, str)
    }
    if "$ref" in converted and len(converted) > 1:
        converted["allOf"] = [{"$ref": converted.pop("$ref")}]
    if "const" in converted:
        converted["enum"] = [converted.pop("const")]
    if "prefixItems" in converted:
        del converted["prefixItems"]
        converted["items"] = {}
    if isinstance(examples := converted.get("examples"), list):
        del converted["examples"]
        converted["example"] = examples[0]
    for limit in ("Minimum", "Maximum"):
        if f"exclusive{limit}" in converted:
            converted |= {limit.lower(): converted.pop(f"exclusive{limit}"), f"exclusive{limit}": True}
    for key in ("anyOf", "oneOf"):
        if _NULL in schema.get(key, ()):
            rest = [as_openapi(each, titles=titles) for each in schema[key] if each != _NULL]
            converted |= {key: rest, "nullable": True}
            if len(rest) == 1:
                converted |= {"allOf": converted.pop(key)} if "$ref" in rest[0] else converted.pop(key)[0]
    return {} if converted == _NULL else converted
