"""TorchServe's inference service."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.ext.grpc.calling import FakeCall

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.wire.messages import Answer
from modelserver.errors import ModelNotFound
from modelserver.ext.grpc.inference import InferenceService
from modelserver.ext.grpc.messages import message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from modelserver.engine.batching.request import Request


class Pool:
    """Answers each request with what came."""

    def submit(self, request: Request, version: str | None) -> None:
        def answer() -> None:
            if request.on_part is not None:
                request.on_part(request, Answer(4), b"part")
            body = bytes(request.bodies[0])
            request.deliver(0, [(Answer(len(body)), body)])

        asyncio.get_running_loop().call_soon(answer)

    def cancel(self, request: Request) -> None:
        assert request.done


class Registry:
    """A registry with one model."""

    def __init__(self) -> None:
        self.healthy = True
        self.model = SimpleNamespace(
            name="m",
            pool=Pool(),
            metrics=ServerMetrics().model("m", "1.0"),
            options=SimpleNamespace(request_timeout=None),
            sequence_headers=None,
            batches=False,
            traffic=None,
        )

    def version_for(self, name: str, *_: Any) -> Any:
        if name != "m":
            raise ModelNotFound.named(name)
        return self.model


@pytest.fixture
def registry() -> Any:
    """What the service answers from."""
    return Registry()


@pytest.fixture
def service(registry: Any) -> InferenceService:
    """The service under test."""
    return InferenceService(registry)


def make_request(name: str = "m", **more: Any) -> Any:
    """A request with one field."""
    return message("org.pytorch.serve.grpc.inference.PredictionsRequest")(
        model_name=name, input={"data": b"\x01"}, **more
    )


async def test_ping_says_what_rest_says(service: InferenceService, registry: Registry) -> None:
    """The text of ``/ping``; the call ends well either way."""
    ping: Any = None
    statuses = [json.loads((await service.ping(ping, FakeCall())).health)["status"]]
    registry.healthy = False
    statuses.append(json.loads((await service.ping(ping, FakeCall())).health)["status"])

    assert statuses == ["Healthy", "Unhealthy"]


async def test_fields_reach_the_worker_unchanged(service: InferenceService) -> None:
    """The worker gets all fields, by name."""
    answer = await service.predict(make_request(), FakeCall())

    assert msgspec.msgpack.decode(answer.prediction) == {"data": b"\x01"}


async def test_a_stream_goes_on_after_a_failure(service: InferenceService) -> None:
    """The failure is an answer with a status; ids of sequences are given back."""

    async def requests() -> AsyncIterator[Any]:
        yield make_request("none", sequence_id="s")
        yield make_request(sequence_id="t")

    answers = [answer async for answer in service.converse(requests(), FakeCall())]
    assert [(answer.status.code, answer.sequence_id) for answer in answers] == [(13, "s"), (0, "t"), (0, "t")]
