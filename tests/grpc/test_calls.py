"""Calls that nobody awaits any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.grpc.calls import Surroundings, handlers
from modelserver.grpc.statuses import tell_prediction


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_call_that_was_cancelled_before_it_began(cancelled: bool) -> None:
    """Nothing is asked of a model for it, and it is counted as cancelled."""
    asked: list[Any] = []
    told: list[int] = []

    async def predict(message: Any, _: Any) -> Any:
        asked.append(message)
        return message

    name = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
    methods = dict.fromkeys(("Ping", "Predictions", "StreamPredictions", "StreamPredictions2"), predict)
    gate: Any = SimpleNamespace(check=lambda *_: None)
    surroundings = Surroundings(lambda *said: told.append(said[2]), gate, asyncio.Event())
    handler = handlers(name, methods, tell_prediction, surroundings)
    details: Any = SimpleNamespace(method=f"/{name}/Predictions")
    context: Any = SimpleNamespace(
        cancelled=lambda: cancelled, time_remaining=lambda: None, peer=lambda: "ipv4:127.0.0.1:1"
    )
    call = handler.service(details).unary_unary(b"", context)  # type: ignore[union-attr]

    if cancelled:
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        await call
    assert (len(asked), told) == ((0, [1]) if cancelled else (1, [0]))
