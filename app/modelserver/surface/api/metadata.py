"""The Open Inference Protocol except inference: health, readiness, metadata (kserve reference 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from modelserver import __version__
from modelserver.errors import ServiceUnavailable
from modelserver.ext.triton.model_config import PLATFORM, tensors_of
from modelserver.surface.api import descriptions as oas
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastapi import FastAPI

    from modelserver.engine.tensors.tensor import TensorSpec
    from modelserver.models.registry import Registry
    from modelserver.models.settings.settings import Settings
    from modelserver.models.version import ModelVersion


# Triton's names and KServe's one.
_EXTENSIONS = (
    *("binary_tensor_data", "parameters", "model_repository", "model_repository_extension"),
    *("model_configuration", "statistics", "sequence", "classification", "trace", "logging"),
)


# The paths of a model, each with the prefix of its operations' ids.
V2_VERSIONS = (("/v2/models/{name}", ""), ("/v2/models/{name}/versions/{version}", "version_"))


def extensions(settings: Settings) -> list[str]:
    """The extensions of the protocol that the server has."""
    shared = [] if settings.shared_memory_prefix is None else ["system_shared_memory"]
    return [*_EXTENSIONS, *shared]


def add_v2(app: FastAPI, registry: Registry, settings: Settings) -> None:
    """Adds the routes."""

    def get(
        path: str, name: str, summary: str, schema: str, *statuses: int
    ) -> Callable[[oas.Endpoint], oas.Endpoint]:
        described = oas.operation(
            "Open Inference", f"v2_{name}", summary, oas.answers(summary, oas.ref(schema), *statuses)
        )

        def added(endpoint: oas.Endpoint) -> oas.Endpoint:
            oas.add(app, path, endpoint, get=described)
            return endpoint

        return added

    @get("/v2", "server", "Name, version and extensions of the server.", "V2Server")
    async def server() -> JSONResponse:
        return JSONResponse(
            {"name": "modelserver", "version": __version__, "extensions": extensions(settings)}
        )

    @get("/v2/health/live", "live", "Whether the server lives.", "V2Live")
    async def live() -> JSONResponse:
        return JSONResponse({"live": True})

    @get("/v2/health/ready", "ready", "Whether all models are ready.", "V2Ready", 503)
    async def ready() -> JSONResponse:
        if not is_ready(registry):
            raise ServiceUnavailable("Server is not ready.")
        return JSONResponse({"ready": True})

    @get("/v2/models", "models", "List the models.", "V1Models")
    async def models() -> JSONResponse:
        return JSONResponse({"models": registry.names()})

    for path, prefix in V2_VERSIONS:

        @get(path, f"{prefix}model", "Inputs and outputs of a model.", "V2Model", 404)
        async def model(name: str, version: str | None = None) -> JSONResponse:
            found = registry.get(name, version)
            versions = [each.version for each in registry.versions(name)]
            return JSONResponse(
                {"name": name, "versions": versions, "platform": PLATFORM, **describe_tensors(found)}
            )

        @get(f"{path}/ready", f"{prefix}modelReady", "Whether a model is ready.", "V2ModelReady", 404, 503)
        async def model_ready(name: str, version: str | None = None) -> JSONResponse:
            if not registry.is_ready(name, version):
                raise ServiceUnavailable(f"Model with name {name} is not ready.")
            return JSONResponse({"name": name, "ready": True})


def is_ready(registry: Registry) -> bool:
    """Whether every model that should have workers has a loaded one."""
    return all(readiness(registry))


def readiness(registry: Registry) -> list[bool]:
    """For each model that should have workers, whether it has a loaded one."""
    return [model.pool.ready for model in registry.defaults() if model.pool.min_workers]


def describe_tensors(model: ModelVersion) -> dict[str, list[dict[str, Any]]]:
    """The inputs and outputs of a model, as far as they are known."""
    inputs, outputs = tensors_of(model)
    return {"inputs": _described(inputs), "outputs": _described(outputs)}


def _described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in specs]


def add_health(app: FastAPI, registry: Registry) -> None:
    """Adds the two routes."""

    async def live() -> Response:
        """GET /livez"""
        return Response(pretty({"status": "Live"}), media_type=JSON)

    async def ready() -> Response:
        """GET /readyz: every model that should have workers has a loaded one."""
        found = readiness(registry)
        if missing := found.count(False):
            raise ServiceUnavailable(f"Not ready: {missing} of {len(found)} models have no loaded worker.")
        return Response(pretty({"status": "Ready"}), media_type=JSON)

    lives = oas.answers("It answers.", oas.STATUS)
    loaded = oas.answers("Every model that should have workers has a loaded one.", oas.STATUS, 503)
    for name, about, answers, endpoint in (
        ("livez", "Whether the server lives.", lives, live),
        ("readyz", "Whether all models are ready.", loaded, ready),
    ):
        described = oas.operation("Health", name, about, answers)
        also = oas.by_other_method("head", described)
        oas.add(app, f"/{name}", endpoint, get=described, head=also)


_SPECS = oas.array(
    oas.record({"name": oas.TEXT, "datatype": oas.TEXT, "shape": oas.SIZES}, "name", "datatype", "shape"),
    "-1 is any size.",
)
SCHEMAS: oas.Document = {
    "V2Server": oas.record(
        {"name": oas.TEXT, "version": oas.TEXT, "extensions": oas.array(oas.TEXT)},
        "name",
        "version",
        "extensions",
    ),
    "V2Live": oas.record({"live": oas.FLAG}, "live"),
    "V2Ready": oas.record({"ready": oas.FLAG}, "ready"),
    "V2ModelReady": oas.record({"name": oas.TEXT, "ready": oas.FLAG}, "name", "ready"),
    "V2Model": oas.record(
        {
            "name": oas.TEXT,
            "versions": oas.array(oas.TEXT),
            "platform": oas.TEXT,
            "inputs": _SPECS,
            "outputs": _SPECS,
        },
        *("name", "platform", "inputs", "outputs"),
    ),
}
