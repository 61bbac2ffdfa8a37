"""How gRPC opens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from modelserver.ext.grpc.extension import call_observer


def test_calls_are_counted_with_their_method() -> None:
    """So that health checks over gRPC count apart."""
    counted: list[tuple[Any, ...]] = []
    metrics: Any = SimpleNamespace(response=lambda *said: counted.append(said))
    access: Any = SimpleNamespace(log=lambda *_: None)
    call_observer(metrics, access)("c", "grpc.health.v1.Health/Check", 0, 200, 0.1, "")

    assert counted == [(200, "grpc.health.v1.Health/Check")]
