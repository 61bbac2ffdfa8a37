"""KServe's model repository over gRPC: methods of the Open Inference service (kserve reference 8)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from modelserver.errors import BadRequest, MethodNotAllowed
from modelserver.ext.repository.model_repository import ModelRepository
from modelserver.extension import Rpc
from modelserver.surface.api.services import Services

Fields = AsyncGenerator[dict[str, Any], None]


def repository_rpcs(services: Services) -> Mapping[str, Rpc]:
    """The methods by name."""
    repository = ModelRepository(services.registry, services.settings)

    def named(request: Any, check_local: Callable[[], None], known: tuple[str, ...]) -> str:
        """The model that a client may load or unload; ``known`` are the parameters of the request."""
        if not services.settings.enable_model_api:
            raise MethodNotAllowed(message="Model API disabled")
        check_local()
        for name in request.parameters:
            if name not in known:
                raise BadRequest(f"parameter '{name[:100]}' is not supported")
        # KServe's clients put the name where Triton's have the repository's.
        name_of_model: str = request.model_name or request.repository_name
        return name_of_model

    async def index(request: Any, _: object) -> Fields:
        yield {"models": await repository.list(only_ready=request.ready)}

    async def load(request: Any, check_local: Callable[[], None]) -> Fields:
        name = named(request, check_local, ())
        await repository.load(name)
        yield {"model_name": name, "isLoaded": True}

    async def unload(request: Any, check_local: Callable[[], None]) -> Fields:
        name = named(request, check_local, ("unload_dependents",))
        await repository.unload(name)
        yield {"model_name": name, "isUnloaded": True}

    return {"RepositoryIndex": index, "RepositoryModelLoad": load, "RepositoryModelUnload": unload}
