"""Request envelopes: formats of requests that the handler need not know (reference 14.6).

``service_envelope`` in config.properties names one for all models; as in TorchServe, a manifest's
``envelope`` is not read. A handler in an envelope gets a flat list of values, and its batches are not
pipelined. Importing this does not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from modelserver_handlers.answers import as_list
from modelserver_handlers.arrays import datatype_of
from modelserver_handlers.context import BatchState, RequestProcessor
from modelserver_handlers.errors import BadInput, PredictionException
from modelserver_handlers.texts import from_base64


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance that the server took from a V1 body: nothing is left to unfold."""

    value: Any

    def copy(self) -> Instance:
        """The instance itself, which is immutable."""
        return self


class UnfoldedState(BatchState):
    """The batch as a handler in an envelope sees it: one entry per value, each showing its request.

    ``owners[i]`` is the position of value ``i``'s request in the batch of ``requests``. Statuses and headers
    that a handler sets for a value apply to its request.
    """

    def __init__(self, requests: BatchState, owners: Sequence[int]) -> None:
        ids = requests.request_ids or {}
        super().__init__([ids.get(owner, "") for owner in owners], [{}] * len(owners))
        self._requests = requests
        self._owners = owners

    def processor(self, idx: int) -> RequestProcessor:
        """The processor of value ``idx``'s request; raises IndexError outside the batch."""
        if self._replaced is not None:
            return self._replaced[idx]
        return self._requests.processor(self._owners[self._position(idx)])

    def parameters(self, idx: int) -> Mapping[str, Any]:
        """The other top-level fields of the body that value ``idx`` came in."""
        return self._requests.parameters(self._owners[idx])

    def close(self, counts: Sequence[int]) -> None:
        """Pass rejections on: a request with a rejected value is rejected.

        ``counts[i]`` is how many values request ``i`` had.
        """
        first = [sum(counts[:position]) for position in range(len(counts))]
        for idx, (status, message) in sorted(self.rejections.items()):
            owner = self._owners[idx]
            if owner not in self._requests.rejections:
                where = f"instances[{idx - first[owner]}]: " if counts[owner] > 1 else ""
                self._requests.reject(owner, where + message, status)
        self._requests.phases = self.phases


HandleFunction = Callable[[list[Any], Any], Any]


class BaseEnvelope:
    """Unfolds each request to values, has the handler answer all of them at once, and folds the answers.

    A subclass defines how one request is unfolded (:meth:`unfold`) and how its answers are folded
    (:meth:`fold`). Unlike in TorchServe, whose ``kserve`` envelopes take only the first request of a batch,
    each request gets its own answer, a malformed one its own 400. What a handler reads or
    sets for value ``idx`` is that of the value's request. Describe calls are passed through.
    """

    def __init__(self, handle_fn: HandleFunction) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None
        self._requests: list[Any] = []
        self._counts: list[int] = []

    def unfold(self, request: Any) -> list[Any]:
        """The values of one request's ``{part: value}``. Raises BadInput."""
        raise NotImplementedError

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """The answer to request ``position`` of the batch, from the answers to its values."""
        raise NotImplementedError

    def handle(self, data: list[Any], context: Any) -> Any:
        """One answer per request of ``data``; None for rejected ones.

        Raises PredictionException (503) if the handler's answers are not one per value.
        """
        self.context = context
        if _property(context, "describe") == "True":
            return self._handle_fn(data, context)
        values = self.parse_input(data)
        if not values:
            return self.format_output([])
        with self._showing_values(context):
            answers = self._handle_fn(values, context)
        if not isinstance(answers, list):
            raise PredictionException("Invalid model predict output", 503)
        counts = self.shares(answers, self._counts)
        if counts is None:
            raise PredictionException("number of batch response mismatched", 503)
        self._counts = counts
        return self.format_output(answers)

    def shares(self, answers: list[Any], counts: list[int]) -> list[int] | None:
        """How many answers each request gets, for ``counts`` values each; None if they do not fit."""
        return counts if len(answers) == sum(counts) else None

    def parse_input(self, data: list[Any]) -> list[Any]:
        """The values of all requests in order; malformed requests are rejected and have none."""
        self._requests = list(data)
        unfolded = [self._unfolded(position, request) for position, request in enumerate(data)]
        self._counts = [len(values) for values in unfolded]
        return [value for values in unfolded for value in values]

    def format_output(self, data: list[Any]) -> list[Any]:
        """The answers to the values that :meth:`parse_input` returned last, one per request."""
        answers: list[Any] = []
        rest = iter(data)
        rejected = getattr(self.context, "_ms_rejections", None) or {}
        for position, (request, count) in enumerate(zip(self._requests, self._counts, strict=True)):
            own = [next(rest) for _ in range(count)]
            if position in rejected:
                answers.append(None)
            else:
                answers.append(own[0] if isinstance(request, Instance) else self.fold(request, own, position))
        return answers

    def _unfolded(self, position: int, request: Any) -> list[Any]:
        try:
            if isinstance(request, Instance):
                return [self.unfold_instance(request.value)]
            return self.unfold(request)
        except BadInput as malformed:
            reject = getattr(self.context, "reject", None)
            if reject is None:
                raise PredictionException(str(malformed), 400) from None
            reject(position, str(malformed), 400)
            return []

    def unfold_instance(self, value: Any) -> Any:
        """What the handler gets for an instance that the server took out of the body. Raises BadInput."""
        return value

    @contextmanager
    def _showing_values(self, context: Any) -> Iterator[None]:
        """Within, the context shows the values instead of the requests."""
        requests = getattr(context, "_ms_state", None)
        if requests is None:
            yield
            return
        owners = [position for position, count in enumerate(self._counts) for _ in range(count)]
        values = UnfoldedState(requests, owners)
        self._begin(context, values)
        try:
            yield
            values.close(self._counts)
        finally:
            self._begin(context, requests)

    @staticmethod
    def _begin(context: Any, state: Any) -> None:
        context._ms_begin(state)
        if getattr(context, "metrics", None) is not None:
            context.metrics.request_ids = state.request_ids or {}


def content(request: Any) -> Any:
    """A request's content: its part ``data``, else its body, else all its parts; bytes are read as JSON.

    Raises BadInput for bytes that are not JSON.
    """
    value = request
    if isinstance(request, Mapping):
        value = request.get("data") or request.get("body") or request
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return value
    try:
        return json.loads(bytes(value))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error or type(error).__name__}") from None


def listed(request: Any, key: str) -> list[Any]:
    """The list under ``key`` of a request's content. Raises BadInput if there is none."""
    carried = content(request)
    if not isinstance(carried, Mapping) or key not in carried:
        raise BadInput(f'no {key} in the request: the body needs "{key}", a list')
    value = carried[key]
    if not isinstance(value, list):
        raise BadInput(f'expected "{key}" to be a list, got {type(value).__name__}')
    return value


def is_explaining(context: Any) -> bool:
    """Whether the batch asks for explanations."""
    return bool(_property(context, "explain") == "True")


def _property(context: Any, name: str) -> Any:
    return None if context is None else context.get_request_header(0, name)


class JSONEnvelope(BaseEnvelope):
    """The elements of ``instances``; ``{"b64": "..."}`` is decoded, also as a column of an instance.

    Unlike in TorchServe, bodies of any content type are read as JSON, and instances in base64 may be mixed
    with others.
    """

    def unfold(self, request: Any) -> list[Any]:
        """The instances, decoded. Raises BadInput without a list of them, and for invalid base64."""
        return [_decoded(instance) for instance in listed(request, "instances")]

    def unfold_instance(self, value: Any) -> Any:
        """Decoded like the others. Raises BadInput for invalid base64."""
        return _decoded(value)

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """A JSON text, as in TorchServe: ``/predictions`` sends it unchanged."""
        return json.dumps({"predictions": answers}, default=as_list)


class KserveEnvelope(BaseEnvelope):
    """The elements of ``instances`` unchanged; ``{"predictions": [...]}`` or ``explanations`` out."""

    def unfold(self, request: Any) -> list[Any]:
        """The instances. Raises BadInput without a list of them."""
        return listed(request, "instances")

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """KServe's V1 answer."""
        return {"explanations" if is_explaining(self.context) else "predictions": answers}


class BodyEnvelope(BaseEnvelope):
    """One value per request: its part ``data`` or its body, as it was decoded."""

    def unfold(self, request: Any) -> list[Any]:
        """The part ``data`` if it is not empty, else the body."""
        if not isinstance(request, Mapping):
            return [request]
        return [request.get("data") or request.get("body")]

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """The answer itself."""
        return answers[0]


def _decoded(instance: Any) -> Any:
    if not isinstance(instance, Mapping):
        return instance
    if _is_encoded(instance):
        return from_base64(instance["b64"])
    return {
        column: from_base64(value["b64"]) if _is_encoded(value) else value
        for column, value in instance.items()
    }


def _is_encoded(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"b64"} and isinstance(value["b64"], str)


_OF_PYTHON = {bool: "BOOL", int: "INT64", float: "FP64"}


class KserveV2Envelope(BaseEnvelope):
    """One value per input tensor: the input with its ``data`` in its ``shape``; for BYTES the first element.

    The handler's answer to each becomes an output of that input's name. A handler that takes the inputs
    together may answer each request once, or a lone request with fewer answers than inputs.
    """

    def unfold(self, request: Any) -> list[Any]:
        """The inputs. Raises BadInput, naming the input, for data that does not fill the shape."""
        return [_shaped(one, place) for place, one in enumerate(listed(request, "inputs"))]

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """An Open Inference answer; its id is the request's own, else that of the HTTP request."""
        carried = content(request)
        manifest = getattr(self.context, "manifest", None) or {}
        return {
            "id": carried.get("id") or self.context.get_request_id(position),
            "model_name": getattr(self.context, "model_name", None),
            "model_version": (manifest.get("model") or {}).get("modelVersion"),
            "outputs": [
                _output(one["name"], answer) for one, answer in zip(carried["inputs"], answers, strict=False)
            ],
        }

    def shares(self, answers: list[Any], counts: list[int]) -> list[int] | None:
        """One answer per input, or per request, or fewer than the inputs of the only one."""
        positions = [position for position, count in enumerate(counts) if count]
        if len(answers) == sum(counts):
            return counts
        if len(answers) == len(positions):
            return [min(count, 1) for count in counts]
        if len(positions) == 1 and len(answers) < sum(counts):
            return [len(answers) if count else 0 for count in counts]
        return None


def _shaped(one: Any, place: int) -> dict[str, Any]:
    fields = ("name", "shape", "datatype", "data")
    if not isinstance(one, Mapping) or not all(field in one for field in fields):
        raise BadInput(f"inputs[{place}] needs {', '.join(fields)}")
    values = _flat(one["data"])
    if one["datatype"] == "BYTES":
        # Its shape is ignored, as in TorchServe, whose documentation sends one text with shape -1.
        return {**one, "data": values[0] if values else ""}
    declared = one["shape"]
    shape = declared if isinstance(declared, list) else [declared]
    if not all(map(_is_size, shape)) or shape.count(-1) > 1:
        raise BadInput(f"inputs[{place}]: shape must be a size or a list of sizes, one of them may be -1")
    filled = _filled(shape, len(values))
    if len(values) != math.prod(filled):
        raise BadInput(f"inputs[{place}]: {len(values)} values do not fill the shape {declared}")
    return {**one, "data": _nested(values, filled)}


def _filled(shape: list[int], count: int) -> list[int]:
    """The shape with -1 replaced by the size that fits ``count`` values."""
    rest = math.prod(size for size in shape if size >= 0)
    return [count // (rest or 1) if size == -1 else size for size in shape]


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= -1


def _flat(data: Any) -> list[Any]:
    """The leaves of nested lists, in order."""
    leaves, waiting = [], [iter([data])]
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, (list, tuple)):
                waiting.append(iter(value))
                break
            leaves.append(value)
        else:
            waiting.pop()
    return leaves


def _nested(values: list[Any], shape: list[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        if size:
            values = [values[start : start + size] for start in range(0, len(values), size)]
    return values


def _output(name: str, answer: Any) -> dict[str, Any]:
    datatype = datatype_of(getattr(answer, "dtype", ""))
    values = _flat(answer.tolist() if hasattr(answer, "tolist") else answer)
    if datatype in {None, "BF16"}:
        datatype = _datatype(values)
    return {"name": name, "datatype": datatype, "data": values, "shape": [len(values)]}


def _datatype(values: list[Any]) -> str:
    """The type that NumPy would give the list: the widest of its numbers, BYTES for anything else."""
    kinds = {type(value) for value in values}
    if not kinds or not kinds <= _OF_PYTHON.keys():
        return "FP64" if not kinds else "BYTES"
    return max((_OF_PYTHON[kind] for kind in kinds), key=["BOOL", "INT64", "FP64"].index)


ENVELOPES: dict[str, type[BaseEnvelope]] = {
    "body": BodyEnvelope,
    "json": JSONEnvelope,
    "kserve": KserveEnvelope,
    "kservev2": KserveV2Envelope,
}
"""The envelopes by the values of ``service_envelope``."""

TAKES_INSTANCES = frozenset({"json", "kserve", "kservev2"})
"""Envelopes with which V1 bodies are always split into instances."""
