"""``BaseEnvelope``: converts requests in other formats for a handler (reference 14.6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from modelserver_handlers.envelopes.unfolding import Instance, UnfoldedState
from modelserver_handlers.errors import BadInput, PredictionException

if TYPE_CHECKING:
    from collections.abc import Iterator

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
