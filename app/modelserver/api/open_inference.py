"""The hot route of the Open Inference Protocol: V2 bodies to rows, rows' answers to bodies (kserve 5, 9)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from modelserver.api.answers import JSON
from modelserver.api.limits import check_size
from modelserver.errors import BadRequest, InternalError
from modelserver.tensors.datatypes import TensorError
from modelserver.tensors.rest import (
    HEADER_LENGTH,
    RAW_INPUT,
    InferRequest,
    decode_request,
    encode_request,
    encode_response,
)
from modelserver.tensors.rows import count_rows, cut, is_plain, join_answers
from modelserver.wire.messages import TENSORS, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.api.exchange import Exchange
    from modelserver.batching.request import Request
    from modelserver.models.version import ModelVersion
    from modelserver.tensors.tensor import Output
    from modelserver.wire.messages import SequenceHeaders

BINARY = "application/octet-stream"

# Of a timeout, in microseconds, and of a sequence's id, in characters.
_LONGEST = 10**15
_LONGEST_ID = 256

_HEADER = HEADER_LENGTH.lower().encode()
_HEADER_LINE = HEADER_LENGTH.lower().encode() + b": %d\r\n"


class _WithInputs(msgspec.Struct):
    inputs: msgspec.Raw


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
_decode_inputs = msgspec.json.Decoder(_WithInputs).decode


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

    def headers(self, packed: bytes) -> bytes:
        """The client's headers (msgpack of [[name, value], ...]) with those that say its sequence."""
        return _pack([*_unpack(packed), *self.sequence]) if self.sequence else packed

    def outputs(self, model: ModelVersion, answers: Sequence[bytes]) -> list[Output]:
        """The tensors that the rows' answers make. Raises InternalError if they make none."""
        try:
            return join_answers(answers, whole=self.whole)
        except TensorError as error:
            raise InternalError(f"The answers of model {model.name} make no tensors: {error}.") from error

    def answer(
        self,
        model: ModelVersion,
        answers: Sequence[bytes],
        request_id: str,
        batch_id: str | None,
        parameters: dict[str, Any],
    ) -> tuple[bytes, str, bytes]:
        """Body, content type and further header lines of the response; ``parameters`` are the handler's.

        Raises:
            BadRequest: an output cannot be told in the form that the client asks for.
            InternalError: the handler's answers do not make tensors.
        """
        outputs = self.outputs(model, answers)
        identity = self.request.id or request_id
        said = parameters if batch_id is None else {**parameters, "batchId": batch_id}
        body, length = encode_response(
            model.name, model.version, self.request, identity, outputs, parameters=said or None
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


def read_inference(exchange: Exchange, model: ModelVersion) -> Inference | None:
    """The request in the exchange's body, or None if the model takes the body as it is (design 9, "Rows").

    Then the body is JSON, and its content type says so where the client does not.

    Raises:
        BadRequest: names the field that is wrong.
        PayloadTooLarge: more rows than a request may have.
    """
    length = header_length(exchange)
    if model.splits_tensors == "never":
        exchange.body = encode_request(exchange.body, length)
        _say_json(exchange, length)
        return None
    signature = model.options.signature
    try:
        request = decode_request(exchange.body, length, signature.inputs or (RAW_INPUT,))
    except BadRequest:
        if model.splits_tensors == "always" or length is not None or _has_inputs(exchange.body):
            raise
        _say_json(exchange, None)
        return None
    return take_apart(request, model)


def take_apart(request: InferRequest, model: ModelVersion) -> Inference:
    """The rows of a request for a model that takes rows. Raises as :func:`read_inference`."""
    signature = model.options.signature
    signature.check_inputs(request.inputs)
    if request.outputs:
        signature.check_outputs(model.name, [output.name for output in request.outputs])
    timeout = _timeout(request)
    sequence = _sequence(request, model.sequence_headers)
    check_size(count_rows(request.inputs), 0)
    extra, whole, bodies = cut(request)
    # Most are views of the body; on their way to the worker any buffer does.
    key = b"" if is_plain(request) else extra
    return Inference(request, extra, key, whole, cast("list[bytes]", bodies), timeout, sequence)


def header_length(exchange: Exchange) -> str | None:
    """What the client says about the length of the JSON before binary data, if it does."""
    for name, value in exchange.headers:
        if len(name) == len(_HEADER) and name.lower() == _HEADER:
            return value.decode("latin-1")
    return None


def _say_json(exchange: Exchange, length: str | None) -> None:
    if not exchange.content_type or length is not None:
        exchange.content_type = JSON


def _has_inputs(body: bytes) -> bool:
    try:
        _decode_inputs(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


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
