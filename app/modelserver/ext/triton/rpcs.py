"""Metadata, and Triton's extensions, over gRPC: methods of the Open Inference service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from modelserver.errors import BadRequest
from modelserver.ext.triton.metadata import describe_config, describe_model, describe_server
from modelserver.ext.triton.regions import Regions
from modelserver.ext.triton.statistics import list_statistics
from modelserver.ext.triton.switches import change_log_settings, change_trace_settings, log_settings
from modelserver.extension import Rpc
from modelserver.surface.api.services import Services

Fields = AsyncGenerator[dict[str, Any], None]

NO_CUDA = "CUDA shared memory is not supported: use system shared memory, or send the tensors"

_LOG_KINDS = {bool: "bool_param", int: "uint32_param", str: "string_param"}


def triton_rpcs(services: Services) -> Mapping[str, Rpc]:
    """The methods by name."""
    registry, shared = services.registry, Regions(services)

    async def model_config(request: Any, _: object) -> Fields:
        yield {"config": describe_config(registry.get(request.name, request.version or None))}

    async def model_statistics(request: Any, _: object) -> Fields:
        async for each in list_statistics(registry, request.name, request.version or None):
            yield {"model_stats": [each]}

    async def memory_status(request: Any, _: object) -> Fields:
        yield {"regions": {each["name"]: each for each in shared.status(request.name)}}

    async def register_memory(request: Any, _: object) -> Fields:
        shared.register(request.name, request.key, request.offset, request.byte_size)
        yield {}

    async def unregister_memory(request: Any, _: object) -> Fields:
        """Without a name, all of it."""
        shared.unregister(request.name)
        yield {}

    async def register_cuda(_: object, __: object) -> Fields:
        raise BadRequest(NO_CUDA)
        yield {}

    async def no_cuda(_: object, __: object) -> Fields:
        """There is none; Triton's clients clean up before they begin."""
        yield {}

    async def trace_settings(request: Any, _: object) -> Fields:
        if request.model_name:
            registry.get(request.model_name)
        changes = {name: list(setting.value) for name, setting in request.settings.items()}
        settings = change_trace_settings(changes)
        yield {"settings": {name: {"value": value} for name, value in settings.items()}}

    return {
        **_metadata_rpcs(services),
        "ModelConfig": model_config,
        "ModelStatistics": model_statistics,
        "SystemSharedMemoryStatus": memory_status,
        "SystemSharedMemoryRegister": register_memory,
        "SystemSharedMemoryUnregister": unregister_memory,
        "CudaSharedMemoryStatus": no_cuda,
        "CudaSharedMemoryRegister": register_cuda,
        "CudaSharedMemoryUnregister": no_cuda,
        "TraceSetting": trace_settings,
        "LogSettings": _log_settings,
    }


def _metadata_rpcs(services: Services) -> Mapping[str, Rpc]:
    registry = services.registry

    async def server_metadata(_: object, __: object) -> Fields:
        """What REST returns; TorchServe only declares this method."""
        yield describe_server(services.settings)

    async def model_metadata(request: Any, _: object) -> Fields:
        """What REST returns, with the limits of the model's batches."""
        options = registry.get(request.name, request.version or None).options
        limits = {"maxBatchSize": str(options.batch_size), "maxBatchDelay": str(options.max_batch_delay)}
        yield {**describe_model(registry, request.name, request.version or None), "properties": limits}

    return {"ServerMetadata": server_metadata, "ModelMetadata": model_metadata}


async def _log_settings(request: Any, check_local: Callable[[], None]) -> Fields:
    if request.settings:
        check_local()
    changes = {}
    for name, setting in request.settings.items():
        kind = setting.WhichOneof("parameter_choice")
        changes[name] = None if kind is None else getattr(setting, kind)
    settings = change_log_settings(changes) if changes else log_settings()
    yield {"settings": {name: {_LOG_KINDS[type(value)]: value} for name, value in settings.items()}}
