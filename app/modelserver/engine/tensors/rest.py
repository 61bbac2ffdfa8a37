"""Inference requests and responses over REST: JSON, followed by binary tensors (kserve reference 5, 9)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from modelserver.engine.tensors import weight
from modelserver.engine.tensors.datatypes import BYTES, DATATYPES, TensorError, from_json, pack, unpack
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.tensors.shared_memory import NO_MEMORY, REGION, Memory, RegionPart
from modelserver.engine.tensors.tensor import VARIABLE, OutputTensor, Tensor, TensorSpec, elements
from modelserver.errors import BadRequest

HEADER_LENGTH = "Inference-Header-Content-Length"

_BINARY_SIZE = "binary_data_size"
_BINARY_OUTPUT = "binary_data_output"
_BINARY = "binary_data"
_NULL = msgspec.Raw(b"null")

_LIMITS = RequestLimits()


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_Output] | None = None


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_request = msgspec.json.Decoder(_Request).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client requests, ``binary`` or as JSON, or to be written to ``shared`` memory."""

    name: str
    binary: bool
    parameters: dict[str, Any]
    shared: RegionPart | None = None


@dataclass(frozen=True, slots=True)
class InferRequest:
    """An inference request. If ``outputs`` is None, all are returned, in the form given by ``binary``."""

    inputs: list[Tensor]
    id: str = ""
    parameters: dict[str, Any] | None = None
    outputs: list[RequestedOutput] | None = None
    binary: bool = False

    def wants_binary(self, name: str) -> bool:
        """Whether the output of this name is to be sent in binary form."""
        for output in self.outputs or ():
            if output.name == name:
                return output.binary
        return self.binary

    def shared(self, name: str) -> RegionPart | None:
        """Where the output of this name is to be written, if not into the response."""
        return next((output.shared for output in self.outputs or () if output.name == name), None)

    def list_inputs(self) -> list[dict[str, Any]]:
        """The inputs as JSON; BYTES that are not text become base64."""
        return [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "datatype": tensor.datatype,
                "data": _listed(tensor),
                **({"parameters": tensor.parameters} if tensor.parameters else {}),
            }
            for tensor in self.inputs
        ]


# The input of a raw request to a model without a signature.
RAW_INPUT = TensorSpec("input_0", BYTES, (VARIABLE,))


def decode_request(
    body: bytes,
    header_length: str | None,
    raw: Sequence[TensorSpec] = (RAW_INPUT,),
    limits: RequestLimits = _LIMITS,
    memory: Memory = NO_MEMORY,
    *,
    light: bool = False,
) -> InferRequest:
    """Parses ``body``; ``header_length`` is the header of that name, None if absent.

    With a header of 0 the body is the data of the single input in ``raw``, and all outputs are returned in
    binary. The content type is ignored, as tritonclient sends none (kserve reference 7.1), and so are unknown
    fields.

    Raises:
        BadRequest: names the field that is invalid or over a limit.
        TooHeavy: only with ``light``, if parsing would take long.
    """
    view = memoryview(body)
    if header_length is None:
        text, binary = view, view[:0]
    else:
        length = _length(header_length, len(view))
        if length == 0:
            return InferRequest([_raw_input(view, raw)], binary=True)
        text, binary = view[:length], view[length:]
    if light and weight.is_heavy_json(text):
        raise weight.TooHeavy
    try:
        request = _decode_request(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise BadRequest(f"the request is not an inference request: {reason}") from error
    # Fewer bytes of JSON cannot hold more tensors or parameters than are allowed.
    if len(text) > 4 * limits.tensors:
        _check_numbers(request, limits)
    parameters = request.parameters or {}
    _check_parameters(parameters, "the request")
    by_default = _flag(parameters, _BINARY_OUTPUT, "the request", default=False)
    outputs = _outputs(request.outputs, memory, by_default=by_default)
    return InferRequest(
        inputs=_inputs(request.inputs, binary, memory, light=light),
        id=request.id or "",
        parameters={key: value for key, value in parameters.items() if key != _BINARY_OUTPUT} or None,
        outputs=outputs,
        binary=by_default,
    )


def _length(header: str, available: int) -> int:
    if not header.isascii() or not header.strip().isdigit() or len(header) > 20:
        raise BadRequest(f"{HEADER_LENGTH} is '{header[:40]}', a number of bytes is needed")
    length = int(header)
    if length > available:
        raise BadRequest(f"{HEADER_LENGTH} is {length}, but the body has only {available} bytes")
    return length


def _raw_input(data: memoryview, specs: Sequence[TensorSpec]) -> Tensor:
    if len(specs) != 1:
        raise BadRequest(f"{HEADER_LENGTH} is 0, but the model has {len(specs)} inputs: send the JSON object")
    (spec,) = specs
    if spec.datatype == BYTES:
        return Tensor(spec.name, BYTES, (1,) * len(spec.shape), memoryview(pack(BYTES, [data])))
    # If another size is variable too, there is one row.
    rest = spec.shape[1:]
    shape = spec.shape if VARIABLE not in rest or spec.shape[0] != VARIABLE else (1, *rest)
    if shape.count(VARIABLE) > 1:
        raise BadRequest(
            f"input '{spec.name}': shape {list(spec.shape)} has several variable sizes, send the JSON object"
        )
    known = elements([size for size in shape if size != VARIABLE]) * DATATYPES[spec.datatype].width
    variable = len(data) // known if known else 0
    shape = tuple(variable if size == VARIABLE else size for size in shape)
    return Tensor(spec.name, spec.datatype, shape, data).checked()


def _check_numbers(request: _Request, limits: RequestLimits) -> None:
    outputs = request.outputs or []
    limits.check_tensors("inputs", len(request.inputs))
    limits.check_tensors("outputs", len(outputs))
    parameters = [request.parameters, *(each.parameters for each in request.inputs)]
    parameters += [each.parameters for each in outputs]
    limits.check_tensors("parameters of all", sum(len(each) for each in parameters if each))


def _inputs(inputs: list[_Input], binary: memoryview, memory: Memory, *, light: bool) -> list[Tensor]:
    if not inputs:
        raise BadRequest("inputs is empty: at least one input is needed")
    tensors: list[Tensor] = []
    names: set[str] = set()
    position = shared = 0
    for each in inputs:
        if each.name in names:
            raise BadRequest(f"input '{each.name}' is given twice")
        names.add(each.name)
        Tensor.check_form(each.name, each.datatype, each.shape)
        parameters = dict(each.parameters or {})
        _check_parameters(parameters, f"input '{each.name}'")
        size = parameters.pop(_BINARY_SIZE, None)
        if size is None and REGION in parameters:
            data, text = _shared(each, parameters, memory, shared, light=light), False
            shared += len(data)
        elif size is None:
            data, text = _from_json(each), each.datatype == BYTES
        else:
            data, text = _slice(each, size, binary[position:]), False
            position += len(data)
        tensor = Tensor(each.name, each.datatype, tuple(each.shape), data, parameters, text)
        tensors.append(tensor.checked(light=light))
    if position != len(binary):
        raise BadRequest(
            f"{len(binary) - position} bytes follow the data that the inputs' {_BINARY_SIZE} announce"
        )
    return tensors


def _has_data(each: _Input) -> bool:
    """Whether there is JSON data; KServe's client sends null with a size of 0."""
    return bool(each.data) and each.data != _NULL


def _from_json(each: _Input) -> memoryview:
    if not _has_data(each):
        raise BadRequest(f"input '{each.name}': 'data' is missing, and so is {_BINARY_SIZE}")
    try:
        values = from_json(each.datatype, each.data)
        if each.datatype == BYTES:
            values = [value.encode() for value in values]
        return memoryview(pack(each.datatype, values))
    except (TensorError, UnicodeEncodeError) as error:
        raise BadRequest(f"input '{each.name}': {error}") from error


def _shared(
    each: _Input, parameters: dict[str, Any], memory: Memory, before: int, *, light: bool
) -> memoryview:
    if _has_data(each):
        raise BadRequest(f"input '{each.name}' has both 'data' and {REGION}")
    return memory.read(parameters, f"input '{each.name}'", before, light=light)


def _slice(each: _Input, size: object, binary: memoryview) -> memoryview:
    if _has_data(each):
        raise BadRequest(f"input '{each.name}' has both 'data' and {_BINARY_SIZE}")
    if type(size) is not int or size < 0:
        raise BadRequest(f"input '{each.name}': {_BINARY_SIZE} is {size!r}, a number of bytes is needed")
    if size > len(binary):
        raise BadRequest(f"input '{each.name}': {_BINARY_SIZE} is {size}, only {len(binary)} bytes are left")
    return binary[:size]


def _outputs(
    outputs: list[_Output] | None, memory: Memory, *, by_default: bool
) -> list[RequestedOutput] | None:
    # Some clients send an empty list to request all outputs.
    if not outputs:
        return None
    requested: dict[str, RequestedOutput] = {}
    for each in outputs:
        if each.name in requested:
            raise BadRequest(f"output '{each.name}' is asked for twice")
        parameters = dict(each.parameters or {})
        where = f"output '{each.name}'"
        _check_parameters(parameters, where)
        binary = _flag(parameters, _BINARY, where, default=by_default)
        parameters.pop(_BINARY, None)
        part = memory.find(parameters, where) if REGION in parameters else None
        requested[each.name] = RequestedOutput(each.name, binary, parameters, part)
    return list(requested.values())


def _flag(parameters: dict[str, Any], name: str, where: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequest(f"{where}: parameter {name} is {value!r}, true or false is needed")
    return value


def _check_parameters(parameters: dict[str, Any], where: str) -> None:
    for name, value in parameters.items():
        if not isinstance(value, (str, int, float, bool)):
            raise BadRequest(f"{where}: parameter {name} is not a string, number or boolean")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise BadRequest(f"{where}: parameter {name} has more than 64 bits")


def encode_response(
    model: str,
    version: str,
    request: InferRequest,
    identity: str,
    outputs: Sequence[OutputTensor],
    *,
    parameters: dict[str, Any] | None = None,
) -> tuple[bytes, int | None]:
    """The body of a response, and the length of its JSON if binary data follows. Keys without a value are
    omitted.

    Raises BadRequest, naming the output, if BYTES that are not text are requested as JSON.
    """
    tensors: list[dict[str, Any]] = []
    binary: list[bytes | memoryview] = []
    in_binary = False
    for output in outputs:
        tensor: dict[str, Any] = {
            "name": output.name,
            "shape": list(output.shape),
            "datatype": output.datatype,
        }
        if (part := request.shared(output.name)) is not None:
            # No parameters say so: Triton's client would look for a size of binary data among them.
            part.write(output.pieces, f"output '{output.name}'")
        elif request.wants_binary(output.name):
            in_binary = True
            tensor["parameters"] = {_BINARY_SIZE: output.size}
            binary += output.pieces
        else:
            tensor["data"] = msgspec.Raw(_to_json(output))
        tensors.append(tensor)
    fields: dict[str, Any] = {"id": identity, "model_name": model}
    if version:
        fields["model_version"] = version
    if parameters:
        fields["parameters"] = parameters
    text = _encode({**fields, "outputs": tensors})
    return (b"".join([text, *binary]), len(text)) if in_binary else (text, None)


def encode_request(
    body: bytes, header_length: str | None, limits: RequestLimits = _LIMITS, memory: Memory = NO_MEMORY
) -> bytes:
    """A request as JSON only; BYTES that are not text become base64. Raises BadRequest."""
    if header_length is None and not (memory.regions and REGION.encode() in body):
        return body
    request = decode_request(body, header_length, limits=limits, memory=memory)
    text = memoryview(body)[: None if header_length is None else _length(header_length, len(body))]
    fields = _decode_fields(text) if text else {}
    return _encode({**fields, "inputs": request.list_inputs()})


def _listed(tensor: Tensor) -> list[Any]:
    values = unpack(tensor.datatype, tensor.data)
    if tensor.datatype != BYTES:
        return values
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError:
        return [base64.b64encode(value).decode() for value in values]


def _to_json(output: OutputTensor) -> bytes:
    # Infinity and NaN become null.
    values = output.values()
    if output.datatype == BYTES:
        try:
            values = [value.decode() for value in values]
        except UnicodeDecodeError as error:
            raise BadRequest(
                f"output '{output.name}' has bytes that are not text: request it with {_BINARY}: true"
            ) from error
    return _encode(values)
