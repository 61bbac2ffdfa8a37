"""The codec of ModelInfer: messages to rows of tensors, and answers to messages (kserve reference 6)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from modelserver.engine.tensors.tensor import OutputTensor, Tensor
from modelserver.engine.tensors.weight import LIGHT_BYTES, TooHeavy
from modelserver.errors import BadRequest, InternalError
from modelserver.ext.grpc.encoded import EncodedMessage
from modelserver.ext.grpc.messages import AnyMessage, DecodeError, message
from modelserver.surface.http.answers import JSON
from modelserver.surface.inference.v2 import Inference, InputRules, ResponseParts

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.models.version import ModelVersion
    from modelserver.surface.api.services import Services

# CPU time that a helper may use for one message.
_SECONDS = 10.0

_Request = message("inference.ModelInferRequest")
_Answer = message("inference.ModelInferResponse")

# The fields of typed contents; half-precision types have none and are raw only.
_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


# Parameters of REST that KServe's client sends here too; sizes in them would prevent sharing a batch.
_OF_REST = frozenset({"binary_data", "binary_data_output", "binary_data_size"})

# Datatypes with the same bytes in messages and tensors, and the first byte of their fields.
_TAGS = {"FP32": 6 << 3 | 2, "FP64": 7 << 3 | 2}


class ModelInfer:
    """The codec.

    Args:
        services: the limits of one request, the memory that clients have registered, helpers for what would
            block the event loop, and what counts the bytes that wait for them.
    """

    def __init__(self, services: Services) -> None:
        self._limits = services.limits
        self._shared = services.shared
        self._helpers = services.off_loop.helpers
        self._intake = services.intake

    async def read(self, message_: AnyMessage, model: ModelVersion) -> Inference:
        """The rows of a message. Raises BadRequest, PayloadTooLarge, ServiceUnavailable."""
        takes = InputRules.of(model, self._limits, self._shared)
        if not isinstance(message_, EncodedMessage):
            with contextlib.suppress(TooHeavy):
                return read_message(message_, takes, light=True)
        body = message_.SerializeToString()
        with self._intake.holding(len(body)):
            return await self._helpers.call(_SECONDS, read_bytes, body, takes.for_helper(body))

    async def encode(self, inference: Inference, model: ModelVersion, ended: Request) -> AnyMessage:
        """The response. Raises InternalError for unsuitable answers."""
        answering = inference.parts(model, ended)
        if answering.is_light:
            return make_response(answering)
        answering = inference.without_inputs().parts(model, ended)
        content = await self._helpers.call(_SECONDS, encode_response, answering)
        return EncodedMessage(_Answer.DESCRIPTOR, content)


def read_message(message_: AnyMessage, takes: InputRules, *, light: bool = False) -> Inference:
    """The rows of a message; a model that takes no rows gets it as JSON.

    It is ``binary`` if its contents were raw. REST's parameters about binary data have no meaning here, and
    are dropped.

    Raises:
        BadRequest: names what is wrong.
        PayloadTooLarge: too many rows.
        TooHeavy: only if ``light``: reading it would take long.
    """
    for what in ("inputs", "outputs", "parameters"):
        takes.limits.check_tensors(what, len(getattr(message_, what)))
    raw, inputs = message_.raw_input_contents, message_.inputs
    if not inputs:
        raise BadRequest("inputs is empty: at least one input is needed")
    shared = sum(takes.memory.is_named(each.parameters) for each in inputs)
    if raw and len(raw) != len(inputs) - shared:
        raise BadRequest(
            f"the number of inputs ({len(inputs) - shared}) does not match the expected number of "
            f"raw input contents ({len(raw)}) for model '{message_.model_name}'"
        )
    _check_names("input", inputs)
    _check_names("output", message_.outputs)
    request = takes.request(
        _tensors(message_, takes, light=light),
        message_.id,
        _parameters(message_.parameters, "the request"),
        [(each.name, _parameters(each.parameters, f"output '{each.name}'")) for each in message_.outputs],
        # Tensors in shared memory are not in raw_input_contents.
        binary=bool(raw or shared),
    )
    if takes.rows:
        return takes.split(request, light=light)
    sequence = takes.sequence_of(request)
    if light and sum(len(each.data) for each in request.inputs) > LIGHT_BYTES:
        raise TooHeavy
    outputs = [{"name": each.name} for each in message_.outputs]
    fields = {"id": request.id, "parameters": request.parameters, "outputs": outputs}
    body = _encode({**{name: each for name, each in fields.items() if each}, "inputs": request.list_inputs()})
    return Inference([body], content_type=JSON, sequence=sequence, request=request)


def read_bytes(body: bytes, takes: InputRules) -> Inference:
    """:func:`read_message` in a helper."""
    try:
        message_ = _Request.FromString(body)
    except DecodeError as error:
        raise BadRequest(f"The message is not of type {_Request.DESCRIPTOR.full_name}: {error}") from error
    return read_message(message_, takes).without_inputs()


def make_response(answering: ResponseParts) -> AnyMessage:
    """The response. Raises InternalError for unsuitable answers."""
    is_json = not answering.is_tensors
    return response(answering, outputs_of_json(answering.answers[0]) if is_json else answering.outputs())


def encode_response(answering: ResponseParts) -> bytes:
    """:func:`make_response` in a helper."""
    encoded: bytes = make_response(answering).SerializeToString()
    return encoded


def _check_names(what: str, tensors: Iterable[AnyMessage]) -> None:
    names: set[str] = set()
    for each in tensors:
        if each.name in names:
            raise BadRequest(f"{what} '{each.name}' is given twice")
        names.add(each.name)


def _tensors(request: AnyMessage, takes: InputRules, *, light: bool) -> list[Tensor]:
    tensors: list[Tensor] = []
    memory = takes.memory
    raw, shared = iter(request.raw_input_contents), 0
    for each in request.inputs:
        if not memory.is_named(each.parameters):
            content = next(raw, None)
            data = None if content is None else memoryview(content)
            tensors.append(_tensor(each, data, request.model_name, light=light))
            continue
        where = f"input '{each.name}'"
        parameters = _parameters(each.parameters, where)
        data = memory.read(parameters, where, shared, light=light)
        shared += len(data)
        made = _tensor(each, data, request.model_name, light=light)
        tensors.append(replace(made, parameters=parameters))
    return tensors


def _tensor(each: AnyMessage, raw: memoryview | None, model: str, *, light: bool) -> Tensor:
    Tensor.check_form(each.name, each.datatype, each.shape)
    if raw is None:
        data = _typed(each)
    elif each.contents.ListFields():
        raise BadRequest(
            "contents field must not be specified when using raw_input_contents for input "
            f"'{each.name}' for model '{model}'"
        )
    else:
        data = raw
    tensor = Tensor(each.name, each.datatype, tuple(each.shape), data).checked(light=light)
    tensor.parameters.update(_parameters(each.parameters, f"input '{each.name}'"))
    return tensor


def _typed(each: AnyMessage) -> memoryview:
    field = _FIELDS.get(each.datatype)
    if field is None:
        raise BadRequest(f"input '{each.name}': {each.datatype} has no typed contents, send it raw")
    for name in (used.name for used, _ in each.contents.ListFields()):
        if name != field:
            raise BadRequest(f"input '{each.name}': {each.datatype} data is in {name} instead of {field}")
    packed = _packed(each.contents, each.datatype)
    if packed is not None:
        return packed
    return Tensor.of_values(each.name, each.datatype, each.shape, getattr(each.contents, field)).data


def _packed(contents: AnyMessage, datatype: str) -> memoryview | None:
    """The bytes of a tensor as they are in the message, or None if they have another form there."""
    tag = _TAGS.get(datatype)
    encoded = memoryview(contents.SerializeToString() if tag else b"")
    if not encoded or encoded[0] != tag:
        return None
    length, place = 0, 1
    while True:
        length |= (encoded[place] & 0x7F) << 7 * (place - 1)
        place += 1
        if encoded[place - 1] < 0x80:
            return encoded[place : place + length]


def _parameters(parameters: Mapping[str, AnyMessage], where: str) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if name in _OF_REST:
            continue
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise BadRequest(f"{where}: parameter {name} has no value")
        read[name] = getattr(parameter, kind)
    return read


def response(answering: ResponseParts, outputs: Sequence[OutputTensor]) -> AnyMessage:
    """The answer: raw if the request was, or if an output has no typed form.

    Raises:
        InternalError: an output does not match its datatype.
    """
    answer = _Answer(model_name=answering.name, model_version=answering.version, id=answering.id)
    for name, value in (answering.parameters or {}).items():
        kind = next(kind for kind in _PARAMETER_KINDS if isinstance(value, kind))
        setattr(answer.parameters[name], _PARAMETER_KINDS[kind], value)
    raw = (
        answering.request.binary
        or any(output.datatype not in _FIELDS for output in outputs)
        or any(each.shared is not None for each in answering.request.outputs or ())
    )
    for output in outputs:
        made = answer.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        if (part := answering.request.shared(output.name)) is not None:
            part.write(output.pieces, f"output '{output.name}'")
            # Each output has an entry, in order.
            answer.raw_output_contents.append(b"")
            continue
        if raw:
            answer.raw_output_contents.append(bytes(output.data))
            continue
        try:
            values = output.values()
        except ValueError as error:
            raise InternalError(f"output '{output.name}': {error}") from error
        getattr(made.contents, _FIELDS[output.datatype]).extend(values)
    return answer


# In this order: a bool is an int, too.
_PARAMETER_KINDS: dict[type, str] = {
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
    str: "string_param",
}


# Models in an envelope, which use the protocol's JSON


class _JsonOutput(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: msgspec.Raw


class _JsonAnswer(msgspec.Struct):
    outputs: list[_JsonOutput]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_JsonAnswer).decode


def outputs_of_json(content: bytes) -> list[OutputTensor]:
    """The outputs of an answer that is the protocol's JSON. Raises InternalError if it is not."""
    try:
        outputs = _decode(content).outputs
        return [OutputTensor.of_json(each.name, each.datatype, each.shape, each.data) for each in outputs]
    except (msgspec.DecodeError, ValueError, BadRequest) as error:
        raise InternalError(f"The answer does not follow the Open Inference Protocol: {error}") from error
