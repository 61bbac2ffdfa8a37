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
from modelserver.surface.inference.v2 import Inference, InputRules, ResponseParts, sequence_of, split_request

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.engine.tensors.limits import RequestLimits
    from modelserver.engine.tensors.shared_memory import Regions
    from modelserver.ext.grpc.messages import AnyMessage
    from modelserver.models.version import ModelVersion
    from modelserver.surface.http.intake import Intake
    from modelserver.surface.http.off_loop import OffLoop

_Request = message("inference.ModelInferRequest")
_Answer = message("inference.ModelInferResponse")


class ModelInfer:
    """The codec.

    Args:
        limits: of one request.
        off_loop: has the helpers for what would block the event loop.
        intake: counts what waits for them.
        shared: memory that clients have registered.
    """

    def __init__(
        self, limits: RequestLimits, off_loop: OffLoop, intake: Intake, shared: Regions | None = None
    ) -> None:
        self._limits = limits
        self._shared = shared
        self._helpers = off_loop.helpers
        self._intake = intake

    async def read(self, asked: AnyMessage, model: ModelVersion) -> Inference:
        """The rows of a message. Raises BadRequest, PayloadTooLarge, IntakeFull."""
        takes = InputRules.of(model, self._limits, self._shared)
        if not isinstance(asked, Encoded):
            with contextlib.suppress(TooHeavy):
                return read_message(asked, takes, light=True)
        body = asked.SerializeToString()
        with self._intake.holding(len(body)):
            return await self._helpers.call(SECONDS, read_bytes, body, takes.for_helper(body))

    async def encode(self, asked: Inference, model: ModelVersion, ended: Request) -> AnyMessage:
        """The response. Raises InternalError for unsuitable answers."""
        answering = asked.parts(model, ended)
        if answering.is_light:
            return make_response(answering)
        content = await self._helpers.call(SECONDS, encode_response, answering.without_inputs())
        return Encoded(_Answer.DESCRIPTOR, content)


def read_message(asked: AnyMessage, takes: InputRules, *, light: bool = False) -> Inference:
    """The rows of a message; a model that takes no rows gets it as JSON.

    Raises:
        BadRequest: names what is wrong.
        PayloadTooLarge: too many rows.
        TooHeavy: only if ``light``: reading it would take long.
    """
    request = read_request(asked, takes.limits, takes.memory, light=light)
    if takes.rows:
        return split_request(request, takes, light=light)
    sequence = sequence_of(request, takes.sequences)
    if light and sum(len(each.data) for each in request.inputs) > LIGHT_BYTES:
        raise TooHeavy
    return Inference([to_json(request)], BODY, JSON, sequence=sequence, request=request)


def read_bytes(body: bytes, takes: InputRules) -> Inference:
    """:func:`read_message` in a helper."""
    try:
        asked = _Request.FromString(body)
    except DecodeError as error:
        raise BadRequest(f"The message is not of type {_Request.DESCRIPTOR.full_name}: {error}") from error
    return read_message(asked, takes).without_inputs()


def make_response(answering: ResponseParts) -> AnyMessage:
    """The response. Raises InternalError for unsuitable answers."""
    rows = answering.kind == TENSORS
    return response(answering, answering.outputs() if rows else outputs_of_json(answering.answers[0]))


def encode_response(answering: ResponseParts) -> bytes:
    """:func:`make_response` in a helper."""
    encoded: bytes = make_response(answering).SerializeToString()
    return encoded
