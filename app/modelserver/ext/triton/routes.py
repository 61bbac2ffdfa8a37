"""Triton's extensions of the protocol: configuration, statistics, shared memory, settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import JSONResponse, Response

from modelserver.engine.tensors.shared_memory import NO_CUDA
from modelserver.errors import BadRequest, MethodNotAllowed
from modelserver.ext.triton.model_config import describe_config
from modelserver.ext.triton.statistics import list_statistics
from modelserver.ext.triton.switches import (
    change_log_settings,
    change_trace_settings,
    log_settings,
    trace_settings,
)
from modelserver.surface.api import descriptions as oas
from modelserver.surface.api.metadata import V2_VERSIONS
from modelserver.surface.api.repository import is_near, read_object

if TYPE_CHECKING:
    from fastapi import FastAPI

    from modelserver.engine.tensors.shared_memory import Regions
    from modelserver.models.registry import Registry

_TAG = "Open Inference"
_encode = msgspec.json.Encoder().encode


def add_triton(app: FastAPI, registry: Registry, shared: Regions) -> None:
    """Adds the routes."""
    _add_model_routes(app, registry)
    _add_system_memory(app, shared)
    _add_cuda_memory(app)
    _add_trace_settings(app, registry)
    _add_log_settings(app)


def _described(name: str, summary: str, schema: oas.Document, *statuses: int, **more: Any) -> oas.Document:
    return oas.operation(_TAG, f"v2_{name}", summary, oas.answers(summary, schema, *statuses), **more)


def _add_model_routes(app: FastAPI, registry: Registry) -> None:
    async def told(name: str = "", version: str | None = None) -> Response:
        found = [msgspec.Raw(_encode(each)) async for each in list_statistics(registry, name, version)]
        return Response(_encode({"model_stats": found}), media_type="application/json")

    async def all_statistics() -> Response:
        return await told()

    async def config(name: str, version: str | None = None) -> JSONResponse:
        return JSONResponse(describe_config(registry.get(name, version)))

    async def statistics(name: str, version: str | None = None) -> Response:
        return await told(name, version)

    stats = oas.ref("V2Statistics")
    all_described = _described("statistics", "What became of the requests to all models.", stats)
    oas.add(app, "/v2/models/stats", all_statistics, get=all_described)
    for path, prefix in V2_VERSIONS:
        described = _described(
            f"{prefix}modelConfig", "The configuration of a model.", oas.ref("V2Config"), 404
        )
        oas.add(app, f"{path}/config", config, get=described)
        described = _described(
            f"{prefix}modelStatistics", "What became of the requests to a model.", stats, 404
        )
        oas.add(app, f"{path}/stats", statistics, get=described)


def _add_system_memory(app: FastAPI, shared: Regions) -> None:
    async def status(region: str = "") -> JSONResponse:
        return JSONResponse(shared.status(region))

    async def register(request: Request, region: str) -> JSONResponse:
        asked = await read_object(request)
        key, offset, size = asked.get("key"), asked.get("offset", 0), asked.get("byte_size")
        if not isinstance(key, str):
            raise BadRequest("key: the name of the shared memory is needed")
        if type(offset) is not int or type(size) is not int:
            raise BadRequest("offset and byte_size: numbers of bytes are needed")
        shared.register(region, key, offset, size)
        return JSONResponse({})

    async def unregister(region: str = "") -> JSONResponse:
        shared.unregister(region)
        return JSONResponse({})

    base, listed = "/v2/systemsharedmemory", oas.array(oas.ref("V2Region"))
    wanted = oas.record({"key": oas.TEXT, "offset": oas.WHOLE, "byte_size": oas.WHOLE}, "key", "byte_size")
    body = oas.json_body("Which memory.", wanted, example={"key": "/tensors_x", "byte_size": 4096})
    for path, name, statuses in ((base, "sharedMemory", ()), (f"{base}/region/{{region}}", "region", (404,))):
        shown = _described(f"{name}_status", "The registered shared memory.", listed, *statuses)
        forgotten = _described(f"{name}_unregister", "Forget shared memory.", oas.record({}))
        oas.add(app, f"{path}/status", status, get=shown)
        oas.add(app, f"{path}/unregister", unregister, post=forgotten)
    added = _described(
        "region_register", "Register shared memory for tensors.", oas.record({}), 400, 413, body=body
    )
    oas.add(app, f"{base}/region/{{region}}/register", register, post=added)


def _add_cuda_memory(app: FastAPI) -> None:
    async def status() -> JSONResponse:
        return JSONResponse([])

    async def register() -> JSONResponse:
        raise BadRequest(NO_CUDA)

    async def unregister() -> JSONResponse:
        """Triton's clients clean up before they begin."""
        return JSONResponse({})

    base = "/v2/cudasharedmemory"
    for path, name in ((base, "cuda"), (f"{base}/region/{{region}}", "cuda_region")):
        shown = _described(f"{name}_status", "An empty list.", oas.array(oas.ANYTHING))
        forgotten = _described(f"{name}_unregister", "Nothing to forget.", oas.record({}))
        oas.add(app, f"{path}/status", status, get=shown)
        oas.add(app, f"{path}/unregister", unregister, post=forgotten)
    refused = oas.operation(_TAG, "v2_cuda_region_register", "Refused: there is none.", oas.errors(400))
    oas.add(app, f"{base}/region/{{region}}/register", register, post=refused)


def _add_trace_settings(app: FastAPI, registry: Registry) -> None:
    async def show(name: str = "") -> JSONResponse:
        if name:
            registry.get(name)
        return JSONResponse(trace_settings())

    async def change(request: Request, name: str = "") -> JSONResponse:
        if name:
            registry.get(name)
        return JSONResponse(change_trace_settings(await read_object(request)))

    settings = oas.record({"trace_level": oas.array(oas.TEXT)}, "trace_level")
    body = oas.json_body("Only OFF is possible.", oas.ANYTHING, example={"trace_level": ["OFF"]})
    for path, prefix, statuses in (("/v2", "", ()), ("/v2/models/{name}", "model_", (404,))):
        shown = _described(f"{prefix}trace", "Nothing is traced in Triton's way.", settings, *statuses)
        changed = _described(
            *(f"{prefix}setTrace", "Accepts that nothing is traced.", settings, 400, 413, *statuses),
            body=body,
        )
        oas.add(app, f"{path}/trace/setting", show, get=shown)
        oas.add(app, f"{path}/trace/setting", change, post=changed)


def _add_log_settings(app: FastAPI) -> None:
    async def show() -> JSONResponse:
        return JSONResponse(log_settings())

    async def change(request: Request) -> JSONResponse:
        if not is_near(request.client):
            raise MethodNotAllowed(
                message="Only clients on the server's machine may change the log here; "
                "the management address has PUT /logging."
            )
        return JSONResponse(change_log_settings(await read_object(request)))

    names = ("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format")
    texts = dict.fromkeys(("log_file", "log_format"), oas.TEXT)
    settings = oas.record({**dict.fromkeys(names, oas.FLAG), **texts, "log_verbose_level": oas.WHOLE}, *names)
    body = oas.json_body("What is to change.", oas.ANYTHING, example={"log_verbose_level": 1})
    shown = _described("log", "How much the server logs, in Triton's terms.", settings)
    changed = _described("setLog", "Change how much the server logs.", settings, 400, 405, 413, body=body)
    oas.add(app, "/v2/logging", show, get=shown)
    oas.add(app, "/v2/logging", change, post=changed)


_DURATION = oas.record({"count": oas.WHOLE, "ns": oas.WHOLE}, "count", "ns")
_TENSORS = oas.array(
    oas.record({"name": oas.TEXT, "data_type": oas.TEXT, "dims": oas.SIZES}, "name", "data_type", "dims")
)
SCHEMAS: oas.Document = {
    "V2Config": oas.record(
        {
            "name": oas.TEXT,
            "platform": oas.TEXT,
            "backend": oas.TEXT,
            "max_batch_size": oas.WHOLE,
            "input": _TENSORS,
            "output": _TENSORS,
            "instance_group": oas.array(oas.ANYTHING),
            "dynamic_batching": oas.ANYTHING,
            "sequence_batching": oas.ANYTHING,
            "model_transaction_policy": oas.ANYTHING,
            "parameters": oas.ANYTHING,
        },
        *("name", "platform", "max_batch_size", "input", "output", "instance_group"),
    ),
    "V2Statistics": oas.record(
        {
            "model_stats": oas.array(
                oas.record(
                    {
                        "name": oas.TEXT,
                        "version": oas.TEXT,
                        "last_inference": oas.told(oas.WHOLE, "Milliseconds since 1970."),
                        "inference_count": oas.WHOLE,
                        "execution_count": oas.WHOLE,
                        "inference_stats": {"type": "object", "additionalProperties": _DURATION},
                        "response_stats": oas.ANYTHING,
                        "batch_stats": oas.array(oas.ANYTHING),
                        "memory_usage": oas.array(oas.ANYTHING),
                    },
                    *("name", "version", "inference_count", "execution_count", "inference_stats"),
                )
            )
        },
        "model_stats",
    ),
    "V2Region": oas.record(
        {"name": oas.TEXT, "key": oas.TEXT, "offset": oas.WHOLE, "byte_size": oas.WHOLE},
        *("name", "key", "offset", "byte_size"),
    ),
}
