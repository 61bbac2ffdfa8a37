"""``modelserver.Handler``: a class with ``predict``, or a function, whose annotations say what a row is."""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import GeneratorType, SimpleNamespace
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import msgspec

from modelserver_handlers.context import record_phases, with_gaps
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.near_misses import near_misses
from modelserver_handlers.tensor_rows import TensorRows, rows_of
from modelserver_handlers.typed.reading import Read, is_pydantic, is_tensor, reader_of
from modelserver_handlers.typed.signature import Described, declared_type, described, element_of


def by_row(steps: Generator[Any, None, None], count: int) -> list[Generator[Any, None, None]]:
    """The rows' parts. The next step runs when a row needs it; an error reaches all rows that are left.

    Raises ValueError in the rows if a step has another number of parts.
    """
    shared = _Steps(steps, count)
    return [shared.row(idx) for idx in range(count)]


class _Steps:
    def __init__(self, steps: Generator[Any, None, None], count: int) -> None:
        self._steps = steps
        self._count = count
        self._waiting: dict[int, deque[Any]] = {idx: deque() for idx in range(count)}
        self._ended: BaseException | None = None

    def row(self, idx: int) -> Generator[Any, None, None]:
        try:
            while self._waiting[idx] or self._advance():
                yield self._waiting[idx].popleft()
            if not isinstance(self._ended, StopIteration):
                assert self._ended is not None  # noqa: S101 - set when there are no more steps
                raise self._ended
        finally:
            del self._waiting[idx]
            if not self._waiting:
                self._steps.close()

    def _advance(self) -> bool:
        """Runs the next step; False if there is none."""
        if self._ended is not None:
            return False
        try:
            parts = next(self._steps)
            if len(parts) != self._count:
                raise ValueError(  # noqa: TRY301 - as if the generator had raised it
                    f"predict yielded {len(parts)} parts, one for each of the {self._count} rows is needed"
                )
        except BaseException as error:  # noqa: BLE001 - raised again in each row
            self._ended = error
            return False
        for idx, waiting in self._waiting.items():
            waiting.append(parts[idx])
        return True


_EXPLAINS_NOTHING = "The handler has no method for explanations"


@dataclass(frozen=True, slots=True)
class HandlerSignature:
    """A handler's rows and answers, as its annotations describe them."""

    inputs: Described
    outputs: Described


class Handler:
    """Override ``predict``, and what else is needed; all are called in the worker.

    The annotation of ``predict``'s rows decides what they are: ``list[X]`` for X ``str``, ``bytes``,
    ``numpy.ndarray``, ``torch.Tensor``, numbers, lists, dicts, data classes, msgspec structs or models of
    pydantic; ``numpy.ndarray`` or ``torch.Tensor`` alone for the whole batch in one piece. Without one they
    are decoded JSON, or else bytes. A row of another type is answered with 400, and the others go on.

    ``pipelined = True`` in a class means that its ``prepare`` may run for the next batch, in another thread,
    while ``predict`` runs for the current one. It is not inherited.
    """

    pipelined: ClassVar[bool] = False
    context: Any
    _ms_types: Types
    # Arrays and tensors in answers are sent as lists.
    _ms_lists: ClassVar[bool] = True
    # What the server, through ``handle``, calls of a subclass.
    _ms_overridden: ClassVar[tuple[str, ...]] = ("predict", "load", "prepare", "answer")
    # What answers a batch, for messages.
    _ms_answering = "predict"

    def load(self, context: Any) -> None:
        """Called once, before the first batch: loads what ``predict`` needs.

        ``context.system_properties`` has ``model_dir`` and ``gpu_id``.
        """

    def prepare(self, row: Any) -> Any:
        """One row before ``predict``, by default unchanged. A ValueError is a 400 for this row."""
        return row

    def predict(self, rows: Any) -> Any:
        """The answers to a batch: a list with one for each row, or an array or tensor of them.

        An answer that is a generator is streamed. If ``predict`` itself is one, each list that it yields has
        the next part of every row.
        """
        raise NotImplementedError

    def answer(self, row: Any) -> Any:
        """One answer of ``predict``, or part of it, before it is sent; by default unchanged."""
        return row

    def initialize(self, context: Any) -> None:
        """Reads the annotations, then calls ``load``. Raises TypeError for those that cannot be used."""
        self.context = context
        self._ms_types = Types.of(type(self))
        self.load(context)

    def handle(self, data: Any, context: Any) -> Any:
        """Answers, one per row, None for rejected ones: how the server calls the handler."""
        return self._ms_complete(self._ms_prepare(data, context), data, context)

    def _ms_prepare(self, data: Any, context: Any) -> Any:
        """The first half of :meth:`handle`: what ``predict`` gets."""
        self.context = context
        if context.get_request_header(0, "describe") == "True":
            return None
        if context.get_request_header(0, "explain") == "True":
            raise PredictionException(_EXPLAINS_NOTHING, 501)
        started, types = time.perf_counter(), self._ms_types
        if types.whole and not types.prepares and isinstance(data, TensorRows) and len(data.tensors) == 1:
            # The same memory, without a loop over the rows.
            rows = types.read(next(iter(data.tensors.values())))
        else:
            rows = self._ms_read(data, context)
            rows = _stacked(rows, types.row) if types.whole and rows else rows
        record_phases(context, time.perf_counter() - started, 0.0, 0.0)
        return rows

    def _ms_read(self, data: Any, context: Any) -> list[Any]:
        """The rows that can be read; the others are rejected."""
        read, prepare, rows = self._ms_types.read, self.prepare, []
        for idx, row in enumerate(data):
            try:
                rows.append(prepare(read(row)))
            except (ValueError, PredictionException) as error:  # noqa: PERF203 - each row fails alone
                _reject(context, idx, error)
        return rows

    def _ms_complete(self, prepared: Any, data: Any, context: Any) -> Any:
        """The second half: the answers to the rows that were prepared."""
        self.context = context
        if prepared is None:
            return [asdict(self._ms_signature())]
        started = inferred = time.perf_counter()
        rejected = context._ms_rejections
        answers: Any = []
        if (count := len(data) - len(rejected)) > 0:
            if content_type := self._ms_types.content_type:
                for idx in range(len(data)):
                    context.set_response_content_type(idx, content_type)
            outputs = self.predict(prepared)
            inferred = time.perf_counter()
            answers = _listed(outputs, count)
            if isinstance(answers, list):
                answers = [self._ms_answer(output) for output in answers]
        record_phases(context, 0.0, inferred - started, time.perf_counter() - inferred)
        return with_gaps(answers, len(data), rejected)

    def _ms_answer(self, output: Any) -> Any:
        if isinstance(output, GeneratorType):
            return self._ms_each(output)
        return _built_in(self.answer(output))

    def _ms_each(self, parts: Generator[Any, Any, Any]) -> Generator[Any, None, Any]:
        try:
            for part in parts:
                yield _built_in(self.answer(part))
        finally:
            parts.close()

    def _ms_signature(self) -> HandlerSignature:
        """The signature that the annotations declare."""
        return self._ms_types.signature


def _reject(context: Any, idx: int, error: ValueError | PredictionException) -> None:
    if isinstance(error, PredictionException):
        context.reject(idx, error.message, error.error_code)
    else:
        context.reject(idx, str(error) or type(error).__name__, 400)


_KINDS = (
    "they can be str, bytes, arrays, tensors, numbers, lists, dicts, data classes, msgspec structs or models "
    "of pydantic"
)


@dataclass(frozen=True, slots=True)
class Types:
    """The types of a handler's rows and answers.

    ``row`` is that of a row; ``whole``: ``predict`` gets one array or tensor. ``prepares``: ``prepare`` is
    overridden. ``content_type``: of answers, if annotations declare it.
    """

    row: Any
    whole: bool
    prepares: bool
    read: Read
    signature: HandlerSignature
    content_type: str

    @classmethod
    def of(cls, handler: type[Handler]) -> Types:
        """Raises TypeError naming the method and what is wrong with it."""
        name = f"{handler.__name__}.predict"
        if handler.predict is Handler.predict:
            misspelt = list(near_misses(handler, ["predict"]))
            hint = f"; is it {misspelt[0]}, misspelt?" if misspelt else ""
            raise TypeError(f"{name}(self, rows) is missing: it gets the rows of a batch{hint}")
        _check_synchronous(handler.predict, name)
        batch, outputs = annotated_types(handler.predict, name)
        try:
            row, whole = element_of(batch)
        except TypeError as error:
            raise TypeError(f"{name} {error}") from None
        answer, content_type = _answer_type(outputs), declared_type(handler.predict)
        if handler.answer is not Handler.answer:
            answer = annotated_types(handler.answer, f"{handler.__name__}.answer")[1]
            content_type = declared_type(handler.answer)
        received, reader_name = row, name
        prepares = handler.prepare is not Handler.prepare
        if prepares:
            reader_name = f"{handler.__name__}.prepare"
            received = annotated_types(handler.prepare, reader_name)[0]
        signature = _signature(received, answer, content_type)
        return cls(row, whole, prepares, _reader(received, reader_name), signature, content_type)

    @classmethod
    def of_function(cls, function: Any, name: str, batch: Any, outputs: Any) -> Types:
        """Returns the types of a function with these annotations of a batch. Raises TypeError."""
        _check_synchronous(function, name)
        row, whole = element_of(batch)
        content_type = declared_type(function)
        signature = _signature(row, _answer_type(outputs), content_type)
        return cls(row, whole, False, _reader(row, name), signature, content_type)


def _signature(row: Any, answer: Any, content_type: str) -> HandlerSignature:
    answers = described(answer, "output_0")
    if content_type:
        answers = replace(answers, media=content_type)
    return HandlerSignature(described(row, "input_0"), answers)


def _check_synchronous(method: Any, name: str) -> None:
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise TypeError(f"{name} is an async def, which is not possible: def is needed")


def _reader(row: Any, name: str) -> Read:
    """The function that reads rows of this type, that of what is called ``name``. Raises TypeError."""
    try:
        return reader_of(row)
    except TypeError as error:
        raise TypeError(f"rows cannot be decoded as {name} is annotated: {error}; {_KINDS}") from None


def annotated_types(method: Any, name: str, place: int = 1) -> tuple[Any, Any]:
    """Returns the types of the parameter at ``place`` and the result, or None. Raises TypeError.

    That of a result that only type checkers can read counts as none.
    """
    try:
        try:
            hints = get_type_hints(method)
        except NameError:
            function = inspect.unwrap(method)
            annotations = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
            hints = get_type_hints(SimpleNamespace(__annotations__=annotations), function.__globals__)
        parameters = list(inspect.signature(method).parameters)
    except (NameError, TypeError, ValueError) as error:
        raise TypeError(
            f"an annotation of {name} cannot be read: {error}; its names must be imported at run time"
        ) from error
    if len(parameters) <= place:
        raise TypeError(f"{name} must take self and one more argument, as in {method.__name__}(self, rows)")
    return hints.get(parameters[place]), hints.get("return")


def _answer_type(annotation: Any) -> Any:
    """That of one answer, from the annotation of a batch of them; None if nothing is known."""
    if get_origin(annotation) is list:
        return next(iter(get_args(annotation)), None)
    try:
        row, whole = element_of(annotation)
    except TypeError:
        return None
    return row if whole else None


def _stacked(rows: Sequence[Any], row_type: Any) -> Any:
    """The rows as one array or tensor. Raises ValueError or RuntimeError if their shapes differ."""
    if is_tensor(row_type):
        import torch  # noqa: PLC0415 - the annotation has imported it

        return torch.stack(list(rows))
    import numpy  # noqa: PLC0415 - as above

    return numpy.stack(rows)


def _listed(outputs: Any, count: int) -> Any:
    """The answers as a list, where they are something else that has one for each row."""
    if isinstance(outputs, GeneratorType):
        return by_row(outputs, count)
    kind = type(outputs).__module__.partition(".")[0]
    if kind == "torch" and hasattr(outputs, "detach"):
        return rows_of(outputs)
    if kind == "numpy" and getattr(outputs, "ndim", None):
        return list(outputs)
    return list(outputs) if isinstance(outputs, tuple) else outputs


def _built_in(value: Any) -> Any:
    """Structs, data classes and models of pydantic as dicts."""
    kind = type(value)
    if kind.__module__ == "builtins":
        if kind is list and value and type(value[0]).__module__ != "builtins":
            return [_built_in(each) for each in value]
        return value
    if is_pydantic(kind):
        return value.model_dump(mode="json")
    if isinstance(value, msgspec.Struct) or hasattr(kind, "__dataclass_fields__"):
        return msgspec.to_builtins(value)
    return value


_STEPS = (Generator, Iterator)


class FunctionHandler(Handler):
    """Calls a function with all rows of a batch, or once for each row, as its annotations say.

    It is one of a batch if its argument is a list, an array or a tensor, and its result is, too, or is not
    annotated. Otherwise it is one of a row.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._ms_answering = function.__name__
        self._by_batch = False

    def initialize(self, context: Any) -> None:
        """Reads the annotations. Raises TypeError for those that cannot be used."""
        self.context = context
        function, name = self._function, self._function.__name__
        rows, answers = annotated_types(function, name, 0)
        self._by_batch = _is_batch(rows) and (answers is None or _is_batch(answers))
        if not self._by_batch:
            rows, answers = list[rows], list[answers]  # type: ignore[valid-type]
        self._ms_types = Types.of_function(function, name, rows, answers)

    def predict(self, rows: Any) -> Any:
        """The results of the function, called for the batch or for each row."""
        return self._function(rows) if self._by_batch else [self._function(row) for row in rows]


def _is_batch(annotation: Any) -> bool:
    if get_origin(annotation) in _STEPS:
        annotation = next(iter(get_args(annotation)), None)
    try:
        element_of(annotation)
    except TypeError:
        return False
    return annotation not in (None, Any, object)
