"""The codec of ModelInfer: messages to rows, and answers to messages; on the event loop or in a helper."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from modelserver.engine.tensors.weight import LIGHT_BYTES, TooHeavy
from modelserver.engine.wire.messages import BODY, TENSORS
from modelserver.errors import BadRequest
from modelserver.ext.grpc.encoded import Encoded
from modelserver.ext.grpc.messages import DecodeError, message
from modelserver.ext.grpc.tensors import outputs_of_json, read_request, response, to_json
from modelserver.surface.http.answers import JSON
from modelserver.surface.inference.codec import SECONDS
from modelserver.surface.inference.v2 import Answering, Inference, Takes, take_apart, take_sequence

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.engine.tensors.limits import RequestLimits
    from modelserver.engine.tensors.shared_memory import Regions
    from modelserver.ext.grpc.messages import AnyMessage
    from modelserver.models.version import ModelVersion
    from modelserver.surface.http.aside import Aside
    from modelserver.surface.http.intake import Intake

_Request = message("inference.ModelInferRequest")
_Answer = message("inference.ModelInferResponse")


class ModelInfer:
    """The codec.

    Args:
        limits: of one request.
        aside: has the helpers for what would block the event loop.
        intake: counts what waits for them.
        shared: memory that clients have registered.
    """

    def __init__(
        self, limits: RequestLimits, aside: Aside, intake: Intake, shared: Regions | None = None
    ) -> None:
        self._limits = limits
        self._shared = shared
        self._helpers = aside.helpers
        self._intake = intake

    async def read(self, asked: AnyMessage, model: ModelVersion) -> Inference:
        """The rows of a message. Raises BadRequest, PayloadTooLarge, IntakeFull."""
        takes = Takes.of(model, self._limits, self._shared)
        if not isinstance(asked, Encoded):
            with contextlib.suppress(TooHeavy):
                return read_message(asked, takes, light=True)
        body = asked.SerializeToString()
        with self._intake.holding(len(body)):
            return await self._helpers.call(SECONDS, read_bytes, body, takes.for_helper(body))

    async def encode(self, asked: Inference, model: ModelVersion, ended: Request) -> AnyMessage:
        """The response. Raises InternalError for unsuitable answers."""
        answering = asked.answering(model, ended)
        if answering.is_light:
            return make_response(answering)
        content = await self._helpers.call(SECONDS, encode_response, answering.without_inputs())
        return Encoded(_Answer.DESCRIPTOR, content)


def read_message(asked: AnyMessage, takes: Takes, *, light: bool = False) -> Inference:
    """The rows of a message; a model that takes no rows gets it as JSON.

    Raises:
        BadRequest: names what is wrong.
        PayloadTooLarge: too many rows.
        TooHeavy: only if ``light``: reading it would take long.
    """
    request = read_request(asked, takes.limits, takes.memory, light=light)
    if takes.rows:
        return take_apart(request, takes, light=light)
    sequence = take_sequence(request, takes.sequences)
    if light and sum(len(each.data) for each in request.inputs) > LIGHT_BYTES:
        raise TooHeavy
    return Inference([to_json(request)], BODY, JSON, sequence=sequence, asked=request)


def read_bytes(body: bytes, takes: Takes) -> Inference:
    """:func:`read_message` in a helper."""
    try:
        asked = _Request.FromString(body)
    except DecodeError as error:
        raise BadRequest(f"The message is not of type {_Request.DESCRIPTOR.full_name}: {error}") from error
    return read_message(asked, takes).without_inputs()


def make_response(answering: Answering) -> AnyMessage:
    """The response. Raises InternalError for unsuitable answers."""
    rows = answering.kind == TENSORS
    return response(answering, answering.outputs() if rows else outputs_of_json(answering.answers[0]))


def encode_response(answering: Answering) -> bytes:
    """:func:`make_response` in a helper."""
    encoded: bytes = make_response(answering).SerializeToString()
    return encoded
