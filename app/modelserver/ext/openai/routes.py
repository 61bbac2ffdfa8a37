"""The list of models, for clients of KServe's V1 protocol and of OpenAI's API, and what describes the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from modelserver.errors import ModelNotFound, ServiceUnavailable
from modelserver.surface.api.application import Application, JsonBody
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from modelserver.models.registry import Registry
    from modelserver.models.version import ModelVersion

Body: TypeAlias = dict[str, Any]

_OWNER = "modelserver"


class OpenAIModel(TypedDict):
    """A model, or an adapter whose ``parent`` is the model, for clients of OpenAI's API."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parent: str | None


class OneModel(OpenAIModel):
    """A model for both kinds of clients."""

    name: str
    ready: bool


class ListedModels(TypedDict):
    """The models for both kinds of clients."""

    object: Literal["list"]
    data: list[OpenAIModel]
    models: list[str]


class OpenAIErrorFields(TypedDict):
    """The error of a request."""

    message: str
    type: str
    param: None
    code: str | None


class OpenAIError(TypedDict):
    """An error for clients of OpenAI's API."""

    error: OpenAIErrorFields


_MISSING = {
    404: (OpenAIError, "No such model or version."),
    503: (OpenAIError, "No worker serves the model, or the server is stopping."),
}
_ERRORS = {
    **_MISSING,
    400: (OpenAIError, "The request is invalid, or the model does not serve this endpoint."),
    401: (OpenAIError, "The token is wrong."),
    413: (OpenAIError, "The body is larger than max_request_size."),
    429: (OpenAIError, "The queue is full."),
    500: (OpenAIError, "The model or its worker failed."),
    504: (OpenAIError, "The deadline passed."),
    507: (OpenAIError, "A worker ran out of memory."),
}


def add_routes(app: Application, services: Services) -> None:
    """Adds the lists of models, and describes the endpoints."""
    add_models(app, services.registry)
    describe_endpoints(app)


def add_models(app: Application, registry: Registry) -> None:
    """Adds the list of models and the document of one, also below ``/openai``."""

    async def list_models() -> JSONResponse:
        names = registry.names()
        models = [registry.get(name) for name in names]
        data = [_described(model, adapter) for model in models for adapter in ("", *_adapters(model))]
        return JSONResponse({"object": "list", "data": data, "models": names})

    async def show_model(name: str) -> JSONResponse:
        own, _, adapter = name.partition("/")
        plain, _, version = own.partition(":")
        model = registry.get(plain, version or None)
        if not registry.is_ready(plain, version or None):
            raise ServiceUnavailable(f"Model with name {plain} is not ready.")
        if adapter and adapter not in _adapters(model):
            raise ModelNotFound.named(name)
        return JSONResponse({**_described(model, adapter), "id": name, "name": plain, "ready": True})

    add = app.section("OpenAI")
    for prefix, word in (("", "openai"), ("/openai", "openai_prefixed")):
        listing = f"get {prefix}/v1/models"
        about = "List the models, for KServe's V1 protocol and OpenAI's API."
        add(list_models, listing, f"{word}_listModels", about, ListedModels)
        path = f"get {prefix}/v1/models/{{name}}"
        about = "One model, for KServe's V1 protocol and OpenAI's API."
        errors: Any = {"responses": _MISSING} if prefix else {"errors": (404, 503)}
        add(show_model, path, f"{word}_model", about, OneModel, **errors)
        # The path is decoded before it is routed: an adapter adds a slash, even if the client sent %2F.
        app.add_api_route(f"{prefix}/v1/models/{{name:path}}", show_model, methods=["get"])


_MESSAGES = [{"role": "user", "content": "What is a tensor?"}]
# Each endpoint, what it does, and an example of its body.
_ENDPOINTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("chat/completions", "Answer a chat, whole or as a stream of events.", {"messages": _MESSAGES}),
    ("completions", "Complete a text, whole or as a stream of events.", {"prompt": "A tensor is"}),
    ("embeddings", "Turn texts into vectors.", {"input": ["a tensor", "a matrix"]}),
    ("rerank", "Sort documents by how well they fit a query.", {"query": "tensor", "documents": ["a", "b"]}),
    ("score", "Say how well pairs of texts fit.", {"text_1": "tensor", "text_2": ["a", "b"]}),
)


def describe_endpoints(app: Application) -> None:
    """Describes what :mod:`modelserver.ext.openai.codec` reads, which is served before the application."""
    for prefix, word in (("", "openai"), ("/openai", "openai_prefixed")):
        for path, about, example in _ENDPOINTS:
            body = JsonBody(Body, "As OpenAI's API has it.", {"model": "my-model", **example})
            line, name = f"post {prefix}/v1/{path}", f"{word}_{path.replace('/', '_')}"
            app.describe("OpenAI", line, name, about, Body, responses=_ERRORS, body=body)


def _described(model: ModelVersion, adapter: str = "") -> OpenAIModel:
    """The model or its adapter, by the name that requests have for it."""
    created = min((worker.created for worker in model.pool.workers), default=0.0)
    name, parent = (f"{model.name}/{adapter}", model.name) if adapter else (model.name, None)
    return OpenAIModel(id=name, object="model", created=int(created), owned_by=_OWNER, parent=parent)


def _adapters(model: ModelVersion) -> tuple[str, ...]:
    """Adapters that its workers have loaded with it."""
    loaded = model.pool.crew.model
    return () if loaded is None else loaded.adapters
