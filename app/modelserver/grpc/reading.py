"""Requests of ModelInfer to rows, and the rows' answers to responses: on the event loop, or by a helper."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from modelserver.errors import BadRequest
from modelserver.grpc.messages import DecodeError, message
from modelserver.grpc.tensors import add_parameters, outputs_of_json, read_request, response, to_json
from modelserver.inference.v2 import Answering, Inference, Takes, take_apart
from modelserver.tensors.rest import InferRequest  # noqa: TC001 - helpers read annotations at run time
from modelserver.tensors.weight import LIGHT_BYTES, TooHeavy

if TYPE_CHECKING:
    from modelserver.grpc.messages import AnyMessage
    from modelserver.wire.messages import SequenceHeaders

_Request = message("inference.ModelInferRequest")


class Asked(msgspec.Struct):
    """A request. ``apart`` are its rows; without them, ``body`` is what its model takes.

    ``sequence``: the headers that say which it belongs to.
    """

    request: InferRequest
    sequence: dict[str, str]
    apart: Inference | None = None
    body: bytes = b""


def read_message(asked: AnyMessage, takes: Takes, splits: bool, *, light: bool = False) -> Asked:
    """What a message asks of a model; ``splits``: of one that takes rows.

    Raises:
        BadRequest: names what is wrong.
        PayloadTooLarge: more rows than a request may have.
        TooHeavy: only where it must be ``light``, and reading it would take long.
    """
    request = read_request(asked, takes.limits, light=light)
    sequence = _take_sequence(request, takes.sequences)
    if splits:
        return Asked(request, sequence, take_apart(request, takes, light=light))
    if light and sum(len(each.data) for each in request.inputs) > LIGHT_BYTES:
        raise TooHeavy
    return Asked(request, sequence, body=to_json(request))


def read_bytes(body: bytes, takes: Takes, splits: bool) -> Asked:
    """What a helper does of it."""
    try:
        asked = _Request.FromString(body)
    except DecodeError as error:
        raise BadRequest(f"The message is no {_Request.DESCRIPTOR.full_name}: {error}") from error
    read = read_message(asked, takes, splits)
    apart = None if read.apart is None else read.apart.without_inputs()
    return Asked(replace(read.request, inputs=[]), read.sequence, apart, read.body)


class Answered(msgspec.Struct):
    """Answers of a model of which a response is made; ``splits`` as above, ``said`` is the handler's."""

    answering: Answering
    splits: bool
    batch_id: str | None
    said: dict[str, Any]


def make_response(answered: Answered) -> AnyMessage:
    """The response. Raises InternalError for answers that make none."""
    answering, asked = answered.answering, answered.answering.asked
    outputs = answering.outputs() if answered.splits else outputs_of_json(answering.answers[0])
    answer = response(answering, asked, answering.id, outputs, answered.batch_id)
    add_parameters(answer, answered.said)
    return answer


def encode_response(answered: Answered) -> bytes:
    """What a helper does of it."""
    encoded: bytes = make_response(answered).SerializeToString()
    return encoded


def _take_sequence(request: InferRequest, names: SequenceHeaders | None) -> dict[str, str]:
    """What Triton's clients say of a sequence, as headers; taken out, or steps would share no batch."""
    if names is None or request.parameters is None:
        return {}
    said: dict[str, Any] = {
        header: request.parameters.pop(parameter, None)
        for parameter, header in (
            ("sequence_id", names.id), ("sequence_start", names.start), ("sequence_end", names.end)
        )
    }  # fmt: skip
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in said.items()
        if value not in (None, "", 0, False)
    }
