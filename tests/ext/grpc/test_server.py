"""The gRPC servers."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from modelserver.errors import ConfigError, ServiceUnavailable
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.ports import reserved
from modelserver.ext.grpc.server import GrpcServers
from modelserver.models.settings.settings import Settings
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing

_INFERENCE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
_MANAGEMENT = "/org.pytorch.serve.grpc.management.ManagementAPIsService"
_Request = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Health = message("org.pytorch.serve.grpc.inference.TorchServeHealthResponse")


def servers(settings: Settings) -> GrpcServers:
    """Those of a server without models."""
    registry, intake = SimpleNamespace(healthy=True), Intake.of(settings)
    services: Any = SimpleNamespace(
        intake=intake,
        outgoing=Outgoing.of(settings, intake.give_back),
        settings=settings,
        registry=registry,
        tokens=None,
        aside=SimpleNamespace(helpers=None),
        shared=None,
    )
    return GrpcServers(services, lambda *_: None)


async def ask(address: str, method: str, body: bytes = b"") -> bytes:
    """A call, without fields unless they are given."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(method)
        answer: bytes = await call(body, timeout=20)
        return answer


def watch(channel: grpc.aio.Channel) -> Any:
    """A call that goes on until somebody ends it."""
    call: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
    return call(b"", timeout=20)


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


@pytest.mark.parametrize(
    ("defaults", "code"),
    [("modelserver", grpc.StatusCode.UNAVAILABLE), ("torchserve", grpc.StatusCode.INTERNAL)],
)
async def test_codes_of_refusals(
    defaults: Any, code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients are told to retry what no queue takes, unless TorchServe's defaults apply (reference 20)."""
    caplog.set_level(logging.INFO, "modelserver.grpc")
    settings = Settings(grpc_inference_port=0, grpc_management_port=0, compat_defaults=defaults)
    made = servers(settings)
    registry: Any = made._services.registry
    registry.version_for = Mock(side_effect=ServiceUnavailable("full"))
    with reserved(settings) as held:
        await made.open(held)
    try:
        address = "127.0.0.1:" + caplog.messages[0].rpartition(":")[2]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(address, f"{_INFERENCE}/Predictions", _Request(model_name="m").SerializeToString())
    finally:
        await made.close(5)

    assert refused.value.code() is code
    assert (refused.value.details() or "").startswith("full\n")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6")
async def test_all_addresses(caplog: pytest.LogCaptureFixture) -> None:
    """A server at `::` is reached over IPv4 too, as over HTTP."""
    caplog.set_level(logging.INFO, "modelserver.grpc")
    settings = Settings(grpc_inference_address="::", grpc_inference_port=0, grpc_management_port=0)
    made = servers(settings)
    with reserved(settings) as held:
        await made.open(held)
    try:
        port = caplog.messages[0].rpartition(":")[2]
        answer = _Health.FromString(await ask(f"127.0.0.1:{port}", f"{_INFERENCE}/Ping"))
    finally:
        await made.close(0)

    assert json.loads(answer.health) == {"status": "Healthy"}


async def test_connections_have_an_age(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting's: a call that goes on beyond that and the time of grace is ended; the other port has its
    own settings.
    """
    caplog.set_level(logging.INFO, "modelserver.grpc")
    monkeypatch.setattr("modelserver.ext.grpc.server._CHECK", 0.02)
    settings = Settings(
        grpc_inference_port=0,
        grpc_management_port=0,
        grpc_inference_max_connection_age_ms=100,
        grpc_inference_max_connection_age_grace_ms=100,
    )
    made = servers(settings)
    with reserved(settings) as held:
        await made.open(held)
    try:
        ports = [line.rpartition(":")[2] for line in caplog.messages]
        async with contextlib.AsyncExitStack() as stack:
            connected = [
                await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
                for port in ports
            ]
            watched, other = (watch(channel) for channel in connected)
            assert await watched.read()
            assert await other.read()
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await watched.read()
            assert not other.done()
    finally:
        await made.close(0)

    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken_stops_the_start() -> None:
    """The error names it, also where two servers have reserved it at the same time."""
    settings = Settings(grpc_inference_port=0, grpc_management_port=0)
    first = servers(settings)
    with reserved(settings) as held:
        port = held[0].getsockname()[1]
        same = Settings(grpc_inference_port=port, grpc_management_port=0)
        second = servers(same)
        with reserved(same) as others:
            await first.open(held)
            try:
                with pytest.raises(ConfigError, match=f"grpc_inference_port={port}"):
                    await second.open(others)
            finally:
                await second.close(0)
                await first.close(0)
