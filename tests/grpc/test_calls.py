"""Calls that nobody awaits any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.grpc.calls import Surroundings, handlers
from modelserver.grpc.messages import message
from modelserver.grpc.statuses import tell_prediction

NAME = "org.pytorch.serve.grpc.inference.InferenceAPIsService"


def call_of(predict: Any, told: list[int]) -> Any:
    """What gRPC calls for ``Predictions``; ``told`` gets the codes with which calls end."""
    methods = dict.fromkeys(("Ping", "Predictions", "StreamPredictions", "StreamPredictions2"), predict)
    gate: Any = SimpleNamespace(check=lambda *_: None)
    surroundings = Surroundings(lambda *said: told.append(said[2]), gate, asyncio.Event())
    handler = handlers(NAME, methods, tell_prediction, surroundings)
    details: Any = SimpleNamespace(method=f"/{NAME}/Predictions")
    return handler.service(details).unary_unary  # type: ignore[union-attr]


def context_of(*, cancelled: bool) -> Any:
    """That of a call."""
    return SimpleNamespace(
        cancelled=lambda: cancelled, time_remaining=lambda: None, peer=lambda: "ipv4:127.0.0.1:1"
    )


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_call_that_was_cancelled_before_it_began(cancelled: bool) -> None:
    """Nothing is asked of a model for it, and it is counted as cancelled."""
    asked: list[Any] = []
    told: list[int] = []

    async def predict(message: Any, _: Any) -> Any:
        asked.append(message)
        return message

    call = call_of(predict, told)(b"", context_of(cancelled=cancelled))

    if cancelled:
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        await call
    assert (len(asked), told) == ((0, [1]) if cancelled else (1, [0]))


@pytest.mark.parametrize("size", [10, 1_000_000])
async def test_messages_know_their_bytes(size: int) -> None:
    """A large message is not serialized anew for whoever needs its bytes; its fields are as in any other."""
    kind = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
    body = kind(model_name="m", input={"data": bytes(size)}).SerializeToString()
    asked: list[Any] = []

    async def predict(message: Any, _: Any) -> Any:
        asked.append(message)
        return message

    await call_of(predict, [])(body, context_of(cancelled=False))

    (found,) = asked
    assert found.SerializeToString() == body
    assert size < 100 or found.SerializeToString() is body
    assert (found.model_name, dict(found.input), found.HasField("sequence_id")) == (
        "m",
        {"data": bytes(size)},
        False,
    )
