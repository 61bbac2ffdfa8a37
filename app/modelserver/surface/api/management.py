"""The management API: register, list, describe, scale, set default, unregister (reference 5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.errors import BadRequest, MethodNotAllowed
from modelserver.models.changes import Change
from modelserver.models.options.resolve import PARAMETERS, REQUESTABLE, Registration
from modelserver.models.options.table import CHANGEABLE
from modelserver.models.registry import Registry
from modelserver.models.replacing import replace_archive
from modelserver.models.settings.model_defaults import RUNTIMES
from modelserver.models.version import ModelVersion
from modelserver.surface.api.describe import describe
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.http.answers import JSON, header_pairs, pretty
from modelserver.surface.inference.customized import fetch_description

_log = logging.getLogger("modelserver.api")


# TorchServe ignores the last two as well.
_SCALING = ("min_worker", "max_worker", "synchronous", "model_version", "number_gpu", "timeout")


class ManagementApi:
    """One method per route; parameters are read as leniently as TorchServe's clients expect.

    gRPC uses the methods that end in ``_by`` too, which do not depend on an HTTP request.
    """

    def __init__(self, registry: Registry, *, model_api: bool) -> None:
        self._registry = registry
        self._model_api = model_api

    async def register(self, request: Request) -> Response:
        self._check_model_api()
        return await self.register_by(await Parameters.of_registration(request))

    async def register_by(self, parameters: Parameters) -> Response:
        """Registers the model of the parameters. Raises MethodNotAllowed without the model API."""
        self._check_model_api()
        parameters.warn_of_unknown(PARAMETERS)
        registration = read_registration(parameters)
        model = await self._registry.register(registration)
        warnings = parameters.warnings
        workers = list(model.pool.workers)
        text = f'Model "{model.name}" Version: {model.version} registered with {len(workers)} initial workers'
        if not workers:
            advice = "Use scale workers API to add workers for the model."
            if model.pool.crew.on_demand is not None:
                advice = "The first request loads the model."
            return status(200, f"{text}. {advice}", warnings)
        if registration.synchronous is False:
            return status(202, "Processing worker updates...", warnings)
        if not await self._registry.wait_loaded(model):
            return status(206, "Workers scaling in progress...", warnings)
        return status(200, text, [*warnings, *model.pool.warnings])

    async def list_models(self, request: Request) -> Response:
        return self.list_by(Parameters.of_query(request))

    def list_by(self, parameters: Parameters) -> Response:
        """The models, ``limit`` of them from ``next_page_token`` on."""
        return parameters.page("model", {each.name: each.url for each in self._registry.defaults()})

    async def describe(self, request: Request, name: str, version: str | None = None) -> Response:
        """GET /models/{name}[/{version}|/all]; ``customized`` is for a single version only."""
        customized = Parameters.of_query(request).boolean("customized") or False
        return await self.describe_by(name, version, customized=customized)

    async def describe_by(self, name: str, version: str | None, *, customized: bool) -> Response:
        """The descriptions of a version, or of ``all``."""
        registry = self._registry
        models = registry.versions(name) if version == "all" else [registry.get(name, version)]
        if customized and version != "all":
            return await describe_customized(models[0])
        await asyncio.gather(*(model.read_gpus() for model in models))
        return Response(pretty([describe(model) for model in models]), media_type=JSON)

    async def scale(self, request: Request, name: str, version: str | None = None) -> Response:
        parameters = Parameters.of_query(request)
        if parameters.text("url") is not None:
            return await self.replace_by(parameters, name, version)
        return await self.scale_by(parameters, name, version)

    async def replace_by(self, parameters: Parameters, name: str, version: str | None = None) -> Response:
        """Replaces a version with the archive at the parameters' ``url``, as soon as that is loaded.

        TorchServe ignores the url. Raises MethodNotAllowed without the model API.
        """
        self._check_model_api()
        parameters.warn_of_unknown((*PARAMETERS, *_SCALING))
        replacement = read_replacement(parameters)
        warnings = parameters.warnings
        version = version or parameters.text("model_version")
        before = self._registry.get(name, version).version
        loading = await replace_archive(self._registry, name, version, replacement)
        if not replacement.synchronous:
            return status(202, "Processing worker updates...", warnings)
        model = await asyncio.shield(loading)
        return status(
            200,
            f'Model "{name}" Version: {before} replaced by version {model.version} '
            f"with {len(model.pool.workers)} workers",
            warnings,
        )

    async def scale_by(self, parameters: Parameters, name: str, version: str | None = None) -> Response:
        """Scales to the parameters' ``min_worker`` and ``max_worker``, and changes options of the model.

        TorchServe only changes the workers, and scales to one if their number is not given.
        """
        parameters.warn_of_unknown((*_SCALING, *CHANGEABLE))
        version = version or parameters.text("model_version")
        min_workers = parameters.integer("min_worker", 1) or 0
        max_workers = parameters.integer("max_worker", min_workers) or 0
        if max_workers < min_workers:
            raise BadRequest("max_worker cannot be less than min_worker.")
        if min_workers < 0:
            raise BadRequest(f"min_worker={min_workers}: a whole number of at least 0 is needed")
        if any(parameters.text(key) is not None for key in CHANGEABLE):
            change = read_change(parameters)
            if change:
                await self._registry.change(name, version, change)
            if parameters.text("min_worker") is None and parameters.text("max_worker") is None:
                if not change:
                    why = "; ".join(parameters.warnings) or "the given values are empty"
                    raise BadRequest(f"There is nothing to change: {why}.")
                return status(200, f'Model "{name}" changed: {change}', parameters.warnings)
        model = self._registry.get(name, version)
        started = await self._registry.scale(name, version, min_workers, max_workers)
        synchronous = parameters.boolean("synchronous")
        warnings = parameters.warnings
        if not synchronous:
            for worker in started:
                worker.first_load.add_done_callback(_log_failure)
            return status(202, "Processing worker updates...", warnings)
        if not await self._registry.wait_scaled(model, started, version):
            return status(206, "Workers scaling in progress...", warnings)
        suffix = f", version: {version}" if version else ""
        return status(200, f"Workers scaled to {min_workers} for model: {name}{suffix}", warnings)

    async def set_default(self, name: str, version: str) -> Response:
        await self._registry.set_default(name, version)
        return status(200, f'Default version successfully updated for model "{name}" to "{version}"')

    async def unregister(self, name: str, version: str | None = None) -> Response:
        self._check_model_api()
        await self._registry.unregister(name, version)
        return status(200, f'Model "{name}" unregistered')

    async def kserve_ready(self, name: str) -> Response:
        """GET /v1/models/{name} (reference 5.9)"""
        name = name.partition(":")[0]
        model = self._registry.get(name)
        return Response(pretty({"name": name, "ready": bool(model.pool.workers)}), media_type=JSON)

    def _check_model_api(self) -> None:
        if not self._model_api:
            raise MethodNotAllowed


async def describe_customized(model: ModelVersion) -> Response:
    """The description with the handler's metadata, and with the status and headers that the handler set.

    Unlike in TorchServe, the reason phrase is always the standard one.
    """
    described = await fetch_description(model)
    await model.read_gpus()
    body = pretty([{**describe(model), "customizedMetadata": described.metadata}])
    answer = described.answer
    response = Response(b"" if answer.status in (204, 304) else body, answer.status, media_type=JSON)
    response.raw_headers += header_pairs(answer.headers or ())
    return response


def read_registration(parameters: Parameters) -> Registration:
    """A registration's parameters (reference 5.2).

    Raises:
        BadRequest: no url, an unknown runtime, or a value out of range.
    """
    if parameters.text("url") is None:
        raise BadRequest("Parameter url is required.")
    runtime = parameters.text("runtime")
    if runtime is not None and runtime not in RUNTIMES:
        raise BadRequest(f"Invalid RuntimeType value: {runtime}")
    values: dict[str, Any] = {}
    for name, row in PARAMETERS.items():
        if row.values.type == "integer":
            values[name] = parameters.integer(name)
        elif row.values.type == "boolean":
            values[name] = parameters.switch(name) if name in REQUESTABLE else parameters.boolean(name)
        else:
            values[name] = parameters.text(name)
    _warn_of_no_batch(parameters, values["batch_size"])
    return Registration(**values, trace=parameters.trace)


def read_replacement(parameters: Parameters) -> Registration:
    """The parameters of a replacement, including those of scaling. Raises BadRequest."""
    named = parameters.text("model_name")
    registration = read_registration(parameters)
    if named is not None:
        raise BadRequest(f"model_name={named[:100]} is not allowed: a replaced model keeps its name")
    return replace(
        registration,
        min_workers=parameters.integer("min_worker", registration.min_workers),
        max_workers=parameters.integer("max_worker", registration.max_workers),
    )


def read_change(parameters: Parameters) -> Change:
    """What a scale request changes besides the workers. Raises BadRequest for a value out of range."""
    read = {"string": parameters.text, "integer": parameters.whole, "boolean": parameters.switch}
    values = {name: read[option.values.type](name) for name, option in CHANGEABLE.items()}
    _warn_of_no_batch(parameters, values["batch_size"])
    return Change.of(**values)


def _warn_of_no_batch(parameters: Parameters, batch_size: Any) -> None:
    if batch_size == 0:
        parameters.warn("The parameter batch_size=0 is not a valid batch size and is ignored")


def status(code: int, text: str, warnings: Sequence[str] = ()) -> Response:
    """A status body (reference 4.3), with warnings if there are any."""
    return Response(pretty({"status": text, "warnings": list(warnings) or None}), code, media_type=JSON)


def _log_failure(load: asyncio.Future[None]) -> None:
    """For workers that no request waits for."""
    if not load.cancelled() and (error := load.exception()) is not None:
        _log.error("A worker failed to start: %s", error)
