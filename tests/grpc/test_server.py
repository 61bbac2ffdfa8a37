"""The gRPC servers."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from modelserver.errors import ConfigError
from modelserver.grpc.messages import message
from modelserver.grpc.ports import reserved
from modelserver.grpc.server import GrpcServers
from modelserver.settings.settings import Settings

_INFERENCE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
_MANAGEMENT = "/org.pytorch.serve.grpc.management.ManagementAPIsService"
_Health = message("org.pytorch.serve.grpc.inference.TorchServeHealthResponse")


def servers(settings: Settings) -> GrpcServers:
    """Those of a server without models."""
    registry = SimpleNamespace(healthy=True)
    services: Any = SimpleNamespace(
        intake=None, settings=settings, registry=registry, tokens=None, payloads=None, aside=None
    )
    return GrpcServers(services, lambda *_: None)


async def ask(address: str, method: str) -> bytes:
    """A call without fields."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(method)
        answer: bytes = await call(b"", timeout=20)
        return answer


async def test_each_side_has_its_port(caplog: pytest.LogCaptureFixture) -> None:
    """Inference answers at one of them only, until the servers are closed."""
    caplog.set_level(logging.INFO, "modelserver.grpc")
    settings = Settings(grpc_inference_port=0, grpc_management_port=0)
    made = servers(settings)
    with reserved(settings) as held:
        await made.open(held)
    try:
        said = [line.rpartition("address: ")[2] for line in caplog.messages]
        inference, management = (line.rpartition("//")[2].replace("grpc:", "") for line in said)
        answer = _Health.FromString(await ask(inference, f"{_INFERENCE}/Ping"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(management, f"{_INFERENCE}/Ping")
    finally:
        await made.close(5)
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await ask(inference, f"{_INFERENCE}/Ping")

    assert json.loads(answer.health) == {"status": "Healthy"}
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert gone.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken_stops_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """The error names it."""
    caplog.set_level(logging.INFO, "modelserver.grpc")
    first = servers(Settings(grpc_inference_port=0, grpc_management_port=0))
    await first.open([])
    try:
        port = int(caplog.messages[0].rpartition(":")[2])
        second = servers(Settings(grpc_inference_port=port, grpc_management_port=0))
        with pytest.raises(ConfigError, match=f"grpc_inference_port={port}"):
            await second.open([])
        await second.close(0)
    finally:
        await first.close(0)
