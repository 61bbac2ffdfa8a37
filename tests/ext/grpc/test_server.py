import contextlib
import json
import logging
import socket
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import pytest

from modelserver.errors import ConfigError, ServiceUnavailable
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.ports import reserved
from modelserver.ext.grpc.server import GrpcServers
from modelserver.ext.repository.rpcs import repository_rpcs
from modelserver.ext.triton.rpcs import triton_rpcs
from modelserver.models.settings.settings import Settings
from modelserver.surface.api.services import Services
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.http.outgoing import Outgoing

_INFERENCE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
_Request = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Health = message("org.pytorch.serve.grpc.inference.TorchServeHealthResponse")


def servers(settings):
    intake = Intake.of(settings)
    services = Services(
        intake=intake,
        outgoing=Outgoing.of(settings, intake.give_back),
        settings=settings,
        registry=SimpleNamespace(healthy=True),
        tokens=None,
        metrics=SimpleNamespace(response=lambda *_: None),
        off_loop=OffLoop(1000),
        shared=None,
    )
    access = SimpleNamespace(log=lambda *_: None)
    return GrpcServers(services, access, rpcs={**triton_rpcs(services), **repository_rpcs(services)})


@contextlib.asynccontextmanager
async def serving(caplog, **settings):
    """Servers at free ports, and these ports: that of inference first."""
    caplog.set_level(logging.INFO, "modelserver.grpc")
    chosen = Settings(grpc_inference_port=0, grpc_management_port=0, **settings)
    made = servers(chosen)
    with reserved(chosen) as held:
        await made.open(held)
    try:
        yield made, [line.rpartition(":")[2] for line in caplog.messages]
    finally:
        await made.close(5)


async def ask(port, method, body=b""):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(method)
        return await call(body, timeout=20)


def watch(channel):
    call = channel.unary_stream("/grpc.health.v1.Health/Watch")
    return call(b"", timeout=20)


@pytest.mark.parametrize("address", ["127.0.0.1", "::"])
async def test_each_side_has_its_port(caplog, address):
    """Inference answers at one only, until the servers close; a server at `::` is reached over IPv4, too."""
    if address == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6")
    async with serving(caplog, grpc_inference_address=address) as (_, (inference, management)):
        answer = _Health.FromString(await ask(inference, f"{_INFERENCE}/Ping"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(management, f"{_INFERENCE}/Ping")
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await ask(inference, f"{_INFERENCE}/Ping")

    assert json.loads(answer.health) == {"status": "Healthy"}
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert gone.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("defaults", "code"),
    [("modelserver", grpc.StatusCode.UNAVAILABLE), ("torchserve", grpc.StatusCode.INTERNAL)],
)
async def test_refusal_is_unavailable_or_torchserves_internal(defaults, code, caplog):
    """Clients retry what no queue accepts, but for TorchServe's defaults (reference 20)."""
    body = _Request(model_name="m").SerializeToString()
    async with serving(caplog, compat_defaults=defaults) as (made, (inference, _)):
        registry = made._services.registry
        registry.version_for = Mock(side_effect=ServiceUnavailable("full"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(inference, f"{_INFERENCE}/Predictions", body)

    assert refused.value.code() is code
    assert (refused.value.details() or "").startswith("full\n")


async def test_connections_have_an_age(caplog, monkeypatch):
    monkeypatch.setattr("modelserver.ext.grpc.server._CHECK", 0.02)
    ages = {"grpc_inference_max_connection_age_ms": 100, "grpc_inference_max_connection_age_grace_ms": 100}
    async with serving(caplog, **ages) as (_, ports), contextlib.AsyncExitStack() as stack:
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports]
        watched, other = [watch(await stack.enter_async_context(channel)) for channel in channels]
        assert await watched.read()
        assert await other.read()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await watched.read()
        assert not other.done()

    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken_stops_the_start():
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
