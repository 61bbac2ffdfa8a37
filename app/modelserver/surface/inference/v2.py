"""The Open Inference Protocol over REST: V2 bodies to rows and back (kserve reference 5, 9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from modelserver.engine.tensors import weight
from modelserver.engine.tensors.datatypes import BYTES, TensorError
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.tensors.rest import (
    HEADER_LENGTH,
    RAW_INPUT,
    InferRequest,
    RequestedOutput,
    decode_request,
    encode_request,
    encode_response,
)
from modelserver.engine.tensors.rows import count_rows, cut, is_plain, join_answers
from modelserver.engine.tensors.shared_memory import NO_MEMORY, Memory, SharedMemory
from modelserver.engine.tensors.tensor import CLASSIFICATION, OutputTensor, Tensor, elements
from modelserver.engine.wire.messages import TENSORS, SequenceHeaders
from modelserver.errors import BadRequest, InternalError
from modelserver.models.options.signature import Signature
from modelserver.surface.http.answers import JSON
from modelserver.surface.inference.codec import SECONDS, Codec, Parsed

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Request
    from modelserver.engine.offload.helpers import Helpers
    from modelserver.models.version import ModelVersion
    from modelserver.surface.http.exchange import Exchange

BINARY = "application/octet-stream"
# The response's parameter with the batch id, if the model batches.
BATCH_ID = "batchId"

# The largest timeout, in microseconds, and the longest id of a sequence, in characters.
_LONGEST = 10**15
_LONGEST_ID = 256

_UNLIKE_ROWS = (
    "Hint: the answers to the rows of a request need the same outputs, of one shape: the handler fills the "
    "shorter ones up, or answers each row with text or a JSON object"
)
_HEADER = HEADER_LENGTH.lower().encode()
_decode_parameters = msgspec.json.Decoder(dict[str, Any]).decode
_HEADER_LINE = _HEADER + b": %d\r\n"


class InputRules(msgspec.Struct, frozen=True):
    """The requests that a model takes, and their limits. Without ``rows`` it takes them unsplit."""

    model: str
    signature: Signature
    sequences: SequenceHeaders | None = None
    limits: RequestLimits = RequestLimits()
    rows: bool = True
    memory: Memory = NO_MEMORY

    @classmethod
    def of(cls, model: ModelVersion, limits: RequestLimits, shared: SharedMemory | None = None) -> InputRules:
        """For this model."""
        names, rows = model.sequence_headers, model.splits_tensors
        memory = NO_MEMORY if shared is None else shared.memory
        return cls(model.name, model.options.signature, names, limits, rows, memory)

    def for_helper(self, body: bytes) -> InputRules:
        """Only what a helper needs to read this body."""
        return msgspec.structs.replace(self, memory=self.memory.for_helper(body))

    def request(
        self,
        inputs: list[Tensor],
        identity: str,
        parameters: dict[str, Any],
        outputs: Iterable[tuple[str, dict[str, Any]]],
        *,
        binary: bool,
    ) -> InferRequest:
        """A request of these parts; ``outputs`` are those that the client names, with their parameters, all
        of them ``binary`` or none. Raises BadRequest for memory that is not registered.
        """
        find = self.memory.find
        named = [
            RequestedOutput(name, binary, each, find(each, f"output '{name}'") if each else None)
            for name, each in outputs
        ]
        return InferRequest(inputs, identity, parameters or None, named or None, binary)

    def split(self, request: InferRequest, *, light: bool = False) -> Inference:
        """The rows of a request for a model that takes rows.

        Raises:
            BadRequest: names the field that is wrong.
            PayloadTooLarge: too many rows.
            TooHeavy: only if ``light``: splitting it would take long.
        """
        self.signature.check_inputs(request.inputs)
        if request.outputs:
            self.signature.check_outputs(self.model, [output.name for output in request.outputs])
            _check_classification(request.outputs)
        timeout = _timeout(request)
        sequence = self.sequence_of(request)
        rows = count_rows(request.inputs)
        self.limits.check_instances(rows, 0)
        if light and _is_heavy(request.inputs, rows):
            raise weight.TooHeavy
        extra, whole, bodies = cut(request)
        self.limits.check_instances(len(bodies), len(extra))
        # Most are views of the body; any buffer can be sent to the worker.
        key = b"" if is_plain(request) else extra
        return Inference(
            cast("list[bytes]", bodies),
            TENSORS,
            extra=extra,
            key=key,
            timeout=timeout,
            sequence=sequence,
            request=request,
            whole=whole,
        )

    def sequence_of(self, request: InferRequest) -> list[tuple[bytes, bytes]]:
        """Triton's sequence parameters as headers; removed from the parameters if the model has sequences.

        A ``sequence_id`` that is 0 or empty means none, as in Triton.
        """
        parameters, names = request.parameters, self.sequences
        if names is None or not parameters:
            return []
        values = {key: parameters.pop(key, None) for key in ("sequence_id", "sequence_start", "sequence_end")}
        identity = values["sequence_id"]
        if isinstance(identity, (float, bool)) or len(str(identity)) > _LONGEST_ID:
            raise BadRequest("the request: parameter sequence_id must be a whole number or a short text")
        headers = [(names.id.encode(), str(identity).encode())] if identity else []
        for key, header in (("sequence_start", names.start), ("sequence_end", names.end)):
            value = values[key]
            if not isinstance(value, (bool, type(None))):
                raise BadRequest(f"the request: parameter {key} is {value!r}, true or false is needed")
            if value:
                headers.append((header.encode(), b"true"))
        return headers


class Inference(Parsed):
    """A V2 request as rows; ``whole``: it is one row, not split."""

    request: InferRequest = InferRequest([])
    whole: bool = True

    joins: ClassVar[bool] = True
    where: ClassVar[str] = "row %d: "

    def without_inputs(self) -> Inference:
        """A copy without the inputs, whose data is in the bodies."""
        return msgspec.structs.replace(self, request=replace(self.request, inputs=[]))

    def parts(self, model: ModelVersion, request: Request) -> ResponseParts:
        """The content of the response; its parameters are the handler's of the first row that has any."""
        named = (answer.parameters for answer, _ in filter(None, request.answers) if answer.parameters)
        parameters = _decode_parameters(next(named, b"{}"))
        if model.batches:
            parameters[BATCH_ID] = request.batch_id
        identity = self.request.id or request.id
        return ResponseParts(
            model.name,
            model.version,
            self.request,
            self.kind,
            self.whole,
            request.contents(),
            identity,
            parameters or None,
        )

    def encode(self, model: ModelVersion, request: Request) -> tuple[bytes, str, bytes]:
        parts = self.parts(model, request)
        if not parts.is_light:
            raise weight.TooHeavy
        return encode_answer(parts)

    async def encode_off_loop(
        self, model: ModelVersion, request: Request, helpers: Helpers
    ) -> tuple[bytes, str, bytes]:
        parts = self.without_inputs().parts(model, request)
        return await helpers.call(SECONDS, encode_answer, parts)


class ResponseParts(msgspec.Struct, frozen=True):
    """The answers to a request's rows, and what else its response needs; ``name`` is the model's.

    ``kind`` is the rows', ``id`` and ``parameters`` are the response's.
    """

    name: str
    version: str
    request: InferRequest
    kind: int
    whole: bool
    answers: Sequence[bytes]
    id: str
    parameters: dict[str, Any] | None = None

    @property
    def is_tensors(self) -> bool:
        """Whether the answers are tensors, as the rows are."""
        return self.kind == TENSORS

    @property
    def is_light(self) -> bool:
        """Whether it can be encoded on the event loop."""
        if len(self.answers) > weight.LIGHT_ROWS:
            return False
        if sum(map(len, self.answers)) <= weight.LIGHT_BYTES:
            return True
        request = self.request
        if not self.is_tensors:
            return False
        return request.binary if request.outputs is None else all(each.binary for each in request.outputs)

    def outputs(self) -> list[OutputTensor]:
        """The tensors in the rows' answers. Raises InternalError if these do not fit together."""
        try:
            return join_answers(self.answers, whole=self.whole)
        except TensorError as error:
            raise InternalError(
                f"The answers of model {self.name} make no tensors: {error}. {_UNLIKE_ROWS}"
            ) from error


def encode_answer(parts: ResponseParts) -> tuple[bytes, str, bytes]:
    """Body, content type and further header lines of the response.

    Raises:
        BadRequest: an output cannot have the form that the client asks for.
        InternalError: the handler's answers are not tensors that fit together.
    """
    body, length = encode_response(
        parts.name, parts.version, parts.request, parts.id, parts.outputs(), parameters=parts.parameters
    )
    if length is None:
        return body, JSON, b""
    return body, BINARY, _HEADER_LINE % length


class V2(Codec):
    """KServe's V2 as JSON, with or without binary data after it.

    Some models take its bodies unsplit (design 9, "Rows"): these are converted to JSON without binary data.
    """

    def read(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        length, takes = header_length(exchange.headers), InputRules.of(model, self._limits, self._shared)
        if takes.rows:
            return _read(exchange.body, length, takes, light=True)
        if length is not None and len(exchange.body) > weight.LIGHT_BYTES:
            raise weight.TooHeavy
        if length is None and weight.is_heavy_json(exchange.body) and takes.memory.regions:
            raise weight.TooHeavy
        exchange.body = encode_request(exchange.body, length, self._limits, takes.memory)
        return self._as_json(exchange, length)

    async def read_off_loop(self, exchange: Exchange, model: ModelVersion) -> Parsed:
        length = header_length(exchange.headers)
        takes = InputRules.of(model, self._limits, self._shared).for_helper(exchange.body)
        if takes.rows:
            return await self._helpers.call(SECONDS, read_tensors, exchange.body, length, takes)
        exchange.body = await self._helpers.call(
            SECONDS, encode_request, exchange.body, length, self._limits, takes.memory
        )
        return self._as_json(exchange, length)

    @staticmethod
    def _as_json(exchange: Exchange, length: str | None) -> Parsed:
        if not exchange.content_type or length is not None:
            exchange.content_type = JSON
        return Parsed([exchange.body], content_type=exchange.content_type)


def read_tensors(body: bytes, length: str | None, takes: InputRules) -> Inference:
    """What helpers call: the request is returned without its inputs, which are in the rows."""
    return _read(body, length, takes).without_inputs()


def _read(body: bytes, length: str | None, takes: InputRules, *, light: bool = False) -> Inference:
    raw = takes.signature.inputs or (RAW_INPUT,)
    request = decode_request(body, length, raw, takes.limits, takes.memory, light=light)
    return takes.split(request, light=light)


def _is_heavy(inputs: Sequence[Tensor], rows: int) -> bool:
    """Whether splitting them into rows would take long."""
    if rows * len(inputs) > 2 * weight.LIGHT_ELEMENTS:
        return True
    texts = (each for each in inputs if each.datatype == BYTES and len(each.data) > weight.LIGHT_BYTES)
    return any(elements(each.shape) > weight.LIGHT_ELEMENTS for each in texts)


def header_length(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The client's header with the length of the JSON before binary data, if any."""
    for name, value in headers:
        if len(name) == len(_HEADER) and name.lower() == _HEADER:
            return value.decode("latin-1")
    return None


def _timeout(request: InferRequest) -> float | None:
    """Seconds; removed from the parameters, so that requests that differ only in it can share a batch."""
    if request.parameters is None or "timeout" not in request.parameters:
        return None
    value = request.parameters.pop("timeout")
    if type(value) is not int or value < 0:
        raise BadRequest(f"the request: parameter timeout is {value!r}, a number of microseconds is needed")
    return min(value, _LONGEST) / 1e6 or None


def _check_classification(outputs: Sequence[RequestedOutput]) -> None:
    """Raises BadRequest unless each number of classes is a whole one, or 0 for the tensor itself."""
    for each in outputs:
        count = each.parameters.get(CLASSIFICATION, 0)
        if type(count) is not int or count < 0:
            raise BadRequest(
                f"output '{each.name}': parameter {CLASSIFICATION} is {count!r}, "
                "a number of classes is needed"
            )
