"""The hot route of the Open Inference Protocol: V2 bodies to rows and back (kserve reference 5, 9)."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - helpers read annotations at run time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from modelserver.errors import BadRequest, InternalError
from modelserver.http.answers import JSON
from modelserver.options.signature import Signature  # noqa: TC001 - helpers read annotations at run time
from modelserver.tensors import weight
from modelserver.tensors.datatypes import BYTES, TensorError
from modelserver.tensors.limits import RequestLimits
from modelserver.tensors.rest import (
    HEADER_LENGTH,
    RAW_INPUT,
    InferRequest,
    decode_request,
    encode_request,
    encode_response,
)
from modelserver.tensors.rows import count_rows, cut, is_plain, join_answers
from modelserver.tensors.tensor import elements
from modelserver.wire.messages import TENSORS, Row, SequenceHeaders

if TYPE_CHECKING:
    from modelserver.batching.request import Request
    from modelserver.http.exchange import Exchange
    from modelserver.models.version import ModelVersion
    from modelserver.offload.helpers import Helpers
    from modelserver.tensors.tensor import Output, Tensor

BINARY = "application/octet-stream"

# Of a timeout, in microseconds, and of a sequence's id, in characters.
_LONGEST = 10**15
_LONGEST_ID = 256

# Of processor time that a helper may use for one request or answer.
SECONDS = 10.0

_HEADER = HEADER_LENGTH.lower().encode()
_HEADER_LINE = HEADER_LENGTH.lower().encode() + b": %d\r\n"


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


class Takes(msgspec.Struct, frozen=True):
    """What a model takes, and how much of it at once."""

    model: str
    signature: Signature
    sequences: SequenceHeaders | None = None
    limits: RequestLimits = RequestLimits()

    @classmethod
    def of(cls, model: ModelVersion, limits: RequestLimits) -> Takes:
        """What this model takes."""
        return cls(model.name, model.options.signature, model.sequence_headers, limits)


@dataclass(frozen=True, slots=True)
class Inference:
    """A V2 request taken apart. ``timeout`` is the client's own, in seconds; None without one.

    ``key`` is what requests must have in common to share batches, empty for those that share them with
    predictions and V1. ``sequence`` are headers that say what the request's parameters said of its sequence.
    """

    request: InferRequest
    extra: bytes
    key: bytes
    whole: bool
    bodies: list[bytes]
    timeout: float | None
    sequence: list[tuple[bytes, bytes]] = field(default_factory=list)

    def rows(self, request_id: str, headers: msgspec.Raw, *, explain: bool = False) -> list[Row]:
        """What travels to the worker beside the bodies."""
        extra = self.extra
        return [
            Row(request_id, len(body), TENSORS, "", headers, None, "", explain, extra) for body in self.bodies
        ]

    def without_inputs(self) -> Inference:
        """The same; what the inputs hold is in the bodies."""
        return replace(self, request=replace(self.request, inputs=[]))

    def headers(self, packed: bytes) -> bytes:
        """The client's headers (msgpack of [[name, value], ...]) with those that say its sequence."""
        return _pack([*_unpack(packed), *self.sequence]) if self.sequence else packed

    def answering(
        self,
        model: ModelVersion,
        answers: Sequence[bytes],
        request_id: str,
        batch_id: str | None,
        parameters: dict[str, Any],
    ) -> Answering:
        """What the response is made of; ``parameters`` are the handler's."""
        said = parameters if batch_id is None else {**parameters, "batchId": batch_id}
        request = self.request
        return Answering(
            model.name, model.version, request, self.whole, answers, request.id or request_id, said or None
        )


class Answering(msgspec.Struct, frozen=True):
    """The answers to the rows of a request, of which a response is made; ``name`` is the model's.

    ``id`` and ``parameters`` are the response's.
    """

    name: str
    version: str
    asked: InferRequest
    whole: bool
    answers: Sequence[bytes]
    id: str
    parameters: dict[str, Any] | None = None

    @property
    def is_light(self) -> bool:
        """Whether that is done in no time."""
        if len(self.answers) > weight.LIGHT_ROWS:
            return False
        if sum(map(len, self.answers)) <= weight.LIGHT_BYTES:
            return True
        asked = self.asked
        return asked.binary if asked.outputs is None else all(each.binary for each in asked.outputs)

    def without_inputs(self) -> Answering:
        """The same, without what no response needs."""
        return msgspec.structs.replace(self, asked=replace(self.asked, inputs=[]))

    def outputs(self) -> list[Output]:
        """The tensors that the rows' answers make. Raises InternalError if they make none."""
        try:
            return join_answers(self.answers, whole=self.whole)
        except TensorError as error:
            raise InternalError(f"The answers of model {self.name} make no tensors: {error}.") from error


def encode_answer(answering: Answering) -> tuple[bytes, str, bytes]:
    """Body, content type and further header lines of the response.

    Raises:
        BadRequest: an output cannot be told in the form that the client asks for.
        InternalError: the handler's answers do not make tensors.
    """
    body, length = encode_response(
        answering.name,
        answering.version,
        answering.asked,
        answering.id,
        answering.outputs(),
        parameters=answering.parameters,
    )
    if length is None:
        return body, JSON, b""
    return body, BINARY, _HEADER_LINE % length


def said_beside(request: Request) -> dict[str, Any]:
    """The parameters of the response that the handler gave to the first row that has any."""
    for answered in request.answers:
        if answered is not None and answered[0].parameters:
            return dict(msgspec.json.decode(answered[0].parameters))
    return {}


def read_inference(exchange: Exchange, model: ModelVersion, limits: RequestLimits) -> Inference | None:
    """The request in the exchange's body, or None if the model takes the body as it is (design 9, "Rows").

    Then the body is JSON, and its content type says so where the client does not.

    Raises:
        BadRequest: names the field that is wrong.
        PayloadTooLarge: more rows than a request may have.
        TooHeavy: it must be read aside, by :func:`read_inference_aside`.
    """
    length = header_length(exchange)
    if model.splits_tensors != "never":
        return _read(exchange.body, length, Takes.of(model, limits), light=True)
    if length is not None and len(exchange.body) > weight.LIGHT_BYTES:
        raise weight.TooHeavy
    exchange.body = encode_request(exchange.body, length, limits)
    _say_json(exchange, length)
    return None


async def read_inference_aside(
    exchange: Exchange, model: ModelVersion, helpers: Helpers, limits: RequestLimits
) -> Inference | None:
    """The same by a helper. Raises BadRequest, PayloadTooLarge."""
    length = header_length(exchange)
    if model.splits_tensors == "never":
        exchange.body = await helpers.call(SECONDS, encode_request, exchange.body, length, limits)
        _say_json(exchange, length)
        return None
    return await helpers.call(SECONDS, read_tensors, exchange.body, length, Takes.of(model, limits))


def read_tensors(body: bytes, length: str | None, takes: Takes) -> Inference:
    """What a helper does of it: the request comes without its inputs, which are in the rows."""
    return _read(body, length, takes).without_inputs()


def _read(body: bytes, length: str | None, takes: Takes, *, light: bool = False) -> Inference:
    raw = takes.signature.inputs or (RAW_INPUT,)
    request = decode_request(body, length, raw, takes.limits, light=light)
    return take_apart(request, takes, light=light)


def take_apart(request: InferRequest, takes: Takes, *, light: bool = False) -> Inference:
    """The rows of a request for a model that takes rows.

    Raises:
        BadRequest: names the field that is wrong.
        PayloadTooLarge: more rows than a request may have.
        TooHeavy: only where it must be ``light``, and cutting it would take long.
    """
    takes.signature.check_inputs(request.inputs)
    if request.outputs:
        takes.signature.check_outputs(takes.model, [output.name for output in request.outputs])
    timeout = _timeout(request)
    sequence = _sequence(request, takes.sequences)
    rows = count_rows(request.inputs)
    takes.limits.check_instances(rows, 0)
    if light and _is_heavy(request.inputs, rows):
        raise weight.TooHeavy
    extra, whole, bodies = cut(request)
    # Most are views of the body; on their way to the worker any buffer does.
    key = b"" if is_plain(request) else extra
    return Inference(request, extra, key, whole, cast("list[bytes]", bodies), timeout, sequence)


def _is_heavy(inputs: Sequence[Tensor], rows: int) -> bool:
    """Whether cutting them into rows would take long."""
    if rows * len(inputs) > 2 * weight.LIGHT_ELEMENTS:
        return True
    for each in inputs:
        if len(each.data) <= weight.LIGHT_BYTES or each.datatype != BYTES:
            continue
        if elements(each.shape) > weight.LIGHT_ELEMENTS:
            return True
    return False


def header_length(exchange: Exchange) -> str | None:
    """What the client says about the length of the JSON before binary data, if it does."""
    for name, value in exchange.headers:
        if len(name) == len(_HEADER) and name.lower() == _HEADER:
            return value.decode("latin-1")
    return None


def _say_json(exchange: Exchange, length: str | None) -> None:
    if not exchange.content_type or length is not None:
        exchange.content_type = JSON


def _timeout(request: InferRequest) -> float | None:
    """Seconds; taken out of the parameters, or requests that differ in it alone could share no batch."""
    if request.parameters is None or "timeout" not in request.parameters:
        return None
    value = request.parameters.pop("timeout")
    if type(value) is not int or value < 0:
        raise BadRequest(f"the request: parameter timeout is {value!r}, a number of microseconds is needed")
    return min(value, _LONGEST) / 1e6 or None


def _sequence(request: InferRequest, names: SequenceHeaders | None) -> list[tuple[bytes, bytes]]:
    """Triton's parameters of sequences as headers; taken out where the model has sequences.

    A ``sequence_id`` of 0 or without a character is none, as in Triton.
    """
    parameters = request.parameters
    if names is None or not parameters:
        return []
    values = {name: parameters.pop(name, None) for name in ("sequence_id", "sequence_start", "sequence_end")}
    given = values["sequence_id"]
    if isinstance(given, (float, bool)) or len(str(given)) > _LONGEST_ID:
        raise BadRequest("the request: parameter sequence_id must be a whole number or a short text")
    said = [(names.id.encode(), str(given).encode())] if given else []
    for name, header in (("sequence_start", names.start), ("sequence_end", names.end)):
        value = values[name]
        if not isinstance(value, (bool, type(None))):
            raise BadRequest(f"the request: parameter {name} is {value!r}, true or false is needed")
        if value:
            said.append((header.encode(), b"true"))
    return said
