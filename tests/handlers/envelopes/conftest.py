"""What tests of this folder share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelserver_handlers.context import BatchState, Context

if TYPE_CHECKING:
    from modelserver_handlers.envelopes import (
        BaseEnvelope,
    )


def make_context(size: int, **properties: str) -> Context:
    """A context in the middle of a batch of ``size`` requests."""
    context = Context("m", "/", {"model": {"modelVersion": "2.0"}}, size, None, "0")
    headers = [{"who": str(number)} for number in range(size)]
    own = {"explain": "False", "url_path": "", **properties}
    ids = [f"id-{number}" for number in range(size)]
    parameters = [{"k": number} for number in range(size)]
    context._ms_begin(BatchState(ids, headers, parameters=parameters, properties=[own] * size))
    return context


def put(kind: type[BaseEnvelope], data: list[Any], handler: Any = None, **properties: str) -> Any:
    """What the envelope answers; the handler echoes unless given. With its context."""
    context = make_context(len(data), **properties)
    envelope = kind(handler or (lambda values, _: values))
    return envelope.handle(data, context), context
