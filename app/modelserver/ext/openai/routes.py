"""``GET /v1/models``: one document for clients of KServe's V1 protocol and of OpenAI's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from modelserver.errors import ServiceUnavailable
from modelserver.surface.api.application import Operation

if TYPE_CHECKING:
    from modelserver.models.registry import Registry
    from modelserver.models.version import ModelVersion
    from modelserver.surface.api.application import Application

_OWNER = "modelserver"


class OpenAIModel(TypedDict):
    """A model for clients of OpenAI's API."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OneModel(OpenAIModel):
    """A model for both kinds of clients."""

    name: str
    ready: bool


class ListedModels(TypedDict):
    """The models for both kinds of clients."""

    object: Literal["list"]
    data: list[OpenAIModel]
    models: list[str]


def add_models(app: Application, registry: Registry) -> None:
    """Adds the list of models and the document of one, also below ``/openai``."""

    async def list_models() -> JSONResponse:
        names = registry.names()
        data = [_described(registry.get(name)) for name in names]
        return JSONResponse({"object": "list", "data": data, "models": names})

    async def show_model(name: str) -> JSONResponse:
        plain, _, version = name.partition(":")
        described = _described(registry.get(plain, version or None))
        if not registry.is_ready(plain):
            raise ServiceUnavailable(f"Model with name {plain} is not ready.")
        return JSONResponse({**described, "id": name, "name": plain, "ready": True})

    for prefix, word in (("", "openai"), ("/openai", "openai_prefixed")):
        listing = f"get {prefix}/v1/models"
        about = "List the models, for KServe's V1 protocol and OpenAI's API."
        app.add(list_models, Operation("OpenAI", listing, f"{word}_listModels", about, ListedModels))
        path = f"get {prefix}/v1/models/{{name}}"
        about = "One model, for KServe's V1 protocol and OpenAI's API."
        app.add(show_model, Operation("OpenAI", path, f"{word}_model", about, OneModel, (404, 503)))


def _described(model: ModelVersion) -> OpenAIModel:
    created = min((worker.created for worker in model.pool.workers), default=0.0)
    return {"id": model.name, "object": "model", "created": int(created), "owned_by": _OWNER}
