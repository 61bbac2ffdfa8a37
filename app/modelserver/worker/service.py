"""One batch through the handler: decode, call, encode, and find out who is to blame when it fails.

A handler gets a list and returns a list of the same length; one exception fails the call. What is allowed to
follow from that is kept small: when a batch of several fails, or comes back with the wrong number of
answers, it is cut in halves that are tried again, so that only the guilty instance gets the error. The
number of calls is bounded; what is undecided when they are used up fails with the error it was part of.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelserver.wire.messages import (
    BODY,
    DESCRIBE,
    FIELDS,
    INSTANCE,
    TENSORS,
    Answer,
    Cancelled,
    Load,
    Measurement,
    Result,
    Row,
    sendable,
)
from modelserver.worker.answers import Unserializable, encode_body, encode_instance
from modelserver.worker.failures import explain_failure, in_short, located, print_failure
from modelserver.worker.hints import hint_for
from modelserver.worker.metrics import HandlerMetrics
from modelserver.worker.rows import Decoded, decode_row, request_headers, request_parameters
from modelserver.worker.streaming import CLIENT_GONE, CallStream, Outlet, exhaust, holds_generators
from modelserver.worker.tensor_rows import EmptyInput, UnknownOutput, decode_rows, encode_output
from modelserver_handlers.context import BatchState, Context, RequestProcessor
from modelserver_handlers.streaming import ClientsGone
from modelserver_handlers.tensor_rows import TensorRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from modelserver.wire.messages import ToWorker
    from modelserver.worker.loader import Entry

Encoded = tuple[Answer, bytes]

_NO_PHASES = (0.0, 0.0, 0.0)
_KSERVE_KINDS = frozenset({INSTANCE, TENSORS})


@dataclass(slots=True, eq=False)
class Work:
    """A batch on its way: what was received, what the handler gets, and the answers so far.

    ``decoded[i]`` is None where row ``i`` could not be decoded; ``answers[i]`` holds its error then.
    ``begun`` are the rows of whose answers a part was sent, ``cancelled`` those that nobody waits for.
    ``tensors``: all rows, where they are tensors that also lie in one piece.
    """

    sequence: int
    rows: Sequence[Row]
    decoded: list[Decoded | None]
    answers: list[Encoded | None]
    phases: tuple[float, float, float] = _NO_PHASES
    calls: int = 0
    metrics: list[Measurement] = field(default_factory=list)
    begun: Set[int] = frozenset()
    cancelled: Set[int] = frozenset()
    tensors: TensorRows | None = None

    @property
    def open(self) -> list[int]:
        """The rows that still need an answer."""
        return [index for index, answer in enumerate(self.answers) if answer is None]

    def select(self, indices: Sequence[int]) -> list[Any]:
        """What the handler gets for these rows.

        Of several rows it gets copies: it may take them apart, and if it fails they are needed again.
        """
        if self.tensors is not None:
            return self.tensors.pick(indices)
        rows = [row.data for index in indices if (row := self.decoded[index]) is not None]
        return [row.copy() for row in rows] if len(rows) > 1 else rows

    def result(self, seconds: float) -> tuple[Result, list[bytes]]:
        """The message that answers the batch, and the bytes behind it."""
        done = [answer for answer in self.answers if answer is not None]
        answers = [answer for answer, _ in done]
        message = Result(self.sequence, answers, seconds, self.phases, self.calls, self.metrics or None)
        return message, [content for _, content in done]


class ContractBroken(Exception):
    """The handler returned something else than one answer per instance; ``short`` are TorchServe's words."""

    def __init__(self, short: str, message: str) -> None:
        super().__init__(message)
        self.short = short


class Service:
    """A loaded handler and how its batches are run.

    Args:
        entry: the handler, called with (data, context).
        context: the worker's one context.
        load: how requests are to be treated.
        metrics: what the handler reports to.
    """

    def __init__(self, entry: Entry, context: Context, load: Load, metrics: HandlerMetrics) -> None:
        self.entry = entry
        self.context = context
        self._load = load
        self._metrics = metrics
        self._outlet: Outlet | None = None
        self._look: Callable[[], Sequence[ToWorker]] | None = None
        self._pause: Callable[[], None] | None = None
        self._running: dict[int, Work] = {}

    def connect(
        self,
        outlet: Outlet,
        look: Callable[[], Sequence[ToWorker]] | None = None,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Lets handlers send parts of answers there.

        ``look`` tells what the server has said meanwhile, ``pause`` waits until clients have taken parts.
        """
        self._outlet = outlet
        self._look = look
        self._pause = pause

    def cancel(self, message: Cancelled) -> None:
        """Clients are gone: the handler may ask, and gets no more parts off to them."""
        work = self._running.get(message.sequence)
        if work is not None:
            work.cancelled = work.cancelled | set(message.rows)

    def finish(self, work: Work, seconds: float) -> tuple[Result, list[bytes]]:
        """The message that answers the batch, and the bytes behind it."""
        self._running.pop(work.sequence, None)
        return work.result(seconds)

    def receive(self, sequence: int, rows: Sequence[Row], tail: memoryview) -> Work:
        """Decodes a batch; a row that cannot be decoded is answered 400 at once."""
        if rows and rows[0].kind == TENSORS and (work := _receive_tensors(sequence, rows, tail)) is not None:
            self._running[sequence] = work
            return work
        decoded: list[Decoded | None] = []
        answers: list[Encoded | None] = []
        position = 0
        checked = b""
        enveloped = bool(self._load.envelope)
        decode = any(row.kind == BODY for row in rows) and self._decodes()
        for row in rows:
            end = position + row.size
            try:
                # Checked once for all rows that have the same, before a handler asks for it.
                if row.extra != checked:
                    request_parameters(row)
                    checked = row.extra
                decoded.append(decode_row(row, tail[position:end], decode=decode, enveloped=enveloped))
                answers.append(None)
            except ValueError as error:
                decoded.append(None)
                answers.append(failure(str(error), 400, "BadRequestException"))
            position = end
        work = self._running[sequence] = Work(sequence, rows, decoded, answers)
        return work

    def _decodes(self) -> bool:
        """Whether bodies are decoded: what the environment says, which a handler may have changed."""
        said = os.environ.get("TS_DECODE_INPUT_REQUEST")
        return self._load.decode_input_request if said is None else said == "true"

    def state(self, work: Work, indices: Sequence[int]) -> BatchState:
        """What the context shows while these rows are with the handler."""
        rows = [work.rows[index] for index in indices]
        state = BatchState(
            [row.request_id for row in rows],
            [partial(_headers, row, work.decoded[index]) for row, index in zip(rows, indices, strict=True)],
            parameters=[partial(request_parameters, row) for row in rows],
            properties=[_properties(row) for row in rows],
        )
        state.stream = self.stream([(work, index) for index in indices], state)
        return state

    def stream(self, places: Sequence[tuple[Work, int]], state: BatchState) -> CallStream | None:
        """The way of parts from a call for these (batch, row); None when the service is not connected."""
        if self._outlet is None:
            return None
        outlet, look = self._outlet, self._look_around
        return CallStream(places, state, self.encode_part, outlet, look, pause=self._pause)

    def _look_around(self) -> None:
        if self._look is not None:
            for message in self._look():
                if isinstance(message, Cancelled):
                    self.cancel(message)

    def run(self, work: Work) -> None:
        """Answers every open row of the batch."""
        indices = work.open
        if indices:
            state = self.state(work, indices)
            self.settle(work, indices, state, lambda: self.call(work.select(indices), state))

    def settle(self, work: Work, indices: list[int], state: BatchState, call: Callable[[], Any]) -> None:
        """Answers these rows by what ``call`` returns for them, or by further calls if it fails."""
        work.calls += 1
        failed: Exception | None = None
        broken: dict[int, Exception] = {}
        try:
            outputs = call()
            check_contract(outputs, len(indices))
            if holds_generators(outputs) and state.stream is not None:
                outputs, broken = exhaust(outputs, state.stream)
        except ClientsGone:
            for index in indices:
                work.answers[index] = CLIENT_GONE
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            failed = error
        else:
            for position, index in enumerate(indices):
                work.answers[index] = self.encode(work.rows[index], outputs, position, state)
            for position, cause in broken.items():
                row = work.rows[indices[position]]
                tell_failure(cause, [row])
                work.answers[indices[position]] = self.describe(cause, row)
            if state.phases != _NO_PHASES:
                work.phases = tuple(a + b for a, b in zip(work.phases, state.phases, strict=True))  # type: ignore[assignment]
        finally:
            if state.stream is not None:
                state.stream.close()
            if collected := self._metrics.collect():
                work.metrics += collected
        # Not within the handling of the error: it would be reported as the context of each that follows.
        if failed is not None:
            self._blame(work, indices, failed, state)

    def begin(self, state: BatchState) -> None:
        """Makes ``state`` what the handler sees."""
        self.context._ms_begin(state)
        self._metrics.request_ids = state.request_ids or {}

    def call(self, data: list[Any], state: BatchState) -> Any:
        """What the handler returns for these rows."""
        self.begin(state)
        return self.entry(data, self.context)

    def _blame(self, work: Work, indices: list[int], error: Exception, state: BatchState) -> None:
        if self._may_bisect(work, indices, error):
            if work.calls == 1:
                tell_failure(error, [work.rows[index] for index in indices])
            half = len(indices) // 2
            # Again through the whole handler: what a failed call left prepared is not trusted.
            for part in (indices[:half], indices[half:]):
                again = self.state(work, part)
                self.settle(work, part, again, partial(self.call, work.select(part), again))
            return
        tell_failure(error, [work.rows[index] for index in indices])
        for position, index in enumerate(indices):
            work.answers[index] = rejection(state, position) or self.describe(error, work.rows[index])

    def _may_bisect(self, work: Work, indices: list[int], error: Exception) -> bool:
        # Parts cannot be taken back: what has sent any is not tried again.
        several = len(indices) > 1 and self._load.isolate and not work.begun
        if work.tensors is not None and work.tensors.changed:
            # A second call would get what the first one has made of the rows.
            return False
        budget = call_budget(max(self._load.batch_size, len(work.rows)))
        return several and work.calls < budget and not is_out_of_memory(error)

    def encode(self, row: Row, outputs: Any, position: int, state: BatchState) -> Encoded:
        """The answer to a row, for which the handler returned ``outputs[position]``."""
        try:
            return rejection(state, position) or self._answer(row, outputs[position], state.touched(position))
        except UnknownOutput as unknown:
            message = f"Unexpected inference output '{unknown}' for model '{self._load.model_name}'"
            return failure(message, 400, "BadRequestException")
        except EmptyInput:
            message = f"the inputs have no rows, and model '{self._load.model_name}' gives rows for none"
            return failure(message, 400, "BadRequestException")
        except Unserializable as error:
            if row.kind == TENSORS:
                return failure(in_short(f"Unsupported model output data type: {error}"), 500)
            why = f" {in_short(str(error))}" if self._load.expose else ""
            return failure(f"Unsupported model output data type.{why}", _kserve(row, 503))
        except Exception as error:  # noqa: BLE001 - encoding runs methods of user objects
            tell_failure(error, [row])
            return self.describe(error, row)

    def describe(self, error: Exception, row: Row) -> Encoded:
        """The answer that an exception of the handler deserves; how much it says is a setting."""
        return describe_failure(error, row, Path(self._load.model_dir) if self._load.expose else None)

    def collect(self) -> list[Measurement]:
        """What the handler has measured since it was asked last."""
        return self._metrics.collect() or []

    def metrics_of_call(self) -> HandlerMetrics:
        """What one of several calls at a time reports to."""
        return HandlerMetrics(self.context.model_name, self._metrics)

    def encode_part(self, work: Work, index: int, part: Any, position: int, state: BatchState) -> Encoded:
        """A part of a row's answer; the first one says what the head of the answer is."""
        encoded = self.encode(work.rows[index], {position: part}, position, state)
        if index not in work.begun or encoded[0].failed:
            return encoded
        # The head of the answer is on its way. What ends sequences is meant for the server.
        end = self._load.sequence_headers.end.lower()
        kept = [header for header in encoded[0].headers or () if header[0].lower() == end]
        return Answer(encoded[0].size, headers=kept or None), encoded[1]

    def _answer(self, row: Row, output: Any, touched: RequestProcessor | None) -> Encoded:
        if row.kind == INSTANCE:
            content, content_type = encode_instance(output), "application/json"
        elif row.kind == TENSORS:
            content, content_type = encode_output(output, row, self._load.outputs), ""
        else:
            content, content_type = encode_body(output)
        limit = self._load.max_response_size
        if len(content) > limit:
            return failure(f"The answer has {len(content)} bytes, max_response_size allows {limit}.", 500)
        if touched is None:
            return Answer(len(content), 200, content_type), content
        headers = [(sendable(k), sendable(v)) for k, v in touched.get_response_headers().items()]
        content_type = next((v for k, v in headers if k.lower() == "content-type"), content_type)
        rest = [(k, v) for k, v in headers if k.lower() != "content-type"] or None
        status = http_status(touched.get_response_status_code())
        phrase = sendable(touched.get_response_status_phrase() or "")
        said = getattr(touched, "_ms_parameters", None) if row.kind == TENSORS else None
        parameters = json.dumps(said).encode() if said else b""
        return Answer(len(content), status, content_type, phrase, rest, parameters=parameters), content


def _receive_tensors(sequence: int, rows: Sequence[Row], tail: memoryview) -> Work | None:
    """A batch of tensors, which are decoded all at once; None for one whose rows are of several forms."""
    form = rows[0].extra
    if not all(row.kind == TENSORS and row.extra == form for row in rows):
        return None
    data = decode_rows(rows, tail)
    tensors = data if isinstance(data, TensorRows) else None
    decoded: list[Decoded | None] = [Decoded(row, {}) for row in data]
    return Work(sequence, rows, decoded, [None] * len(rows), tensors=tensors)


def check_contract(outputs: Any, expected: int) -> None:
    """Raises :class:`ContractBroken` unless ``outputs`` is a list of ``expected`` answers."""
    if not isinstance(outputs, list):
        raise ContractBroken(
            "Invalid model predict output",
            f"The handler returned {type(outputs).__name__}, a list is needed.",
        )
    if len(outputs) != expected:
        raise ContractBroken(
            "number of batch response mismatched",
            "size of prediction is not equal to the size of instances: "
            f"expected {expected}, the handler returned {len(outputs)}",
        )


def is_out_of_memory(error: Exception) -> bool:
    """Host memory, or a device's: those messages all name CUDA (reference 6.5)."""
    return isinstance(error, MemoryError) or "CUDA" in _message(error)


def tell_failure(error: Exception, rows: Sequence[Row]) -> None:
    """Prints an exception of the handler with the requests that it had."""
    print_failure(error, [row.request_id for row in rows], hint_for(error, rows[0].kind))


def describe_failure(error: Exception, row: Row, model_dir: Path | None = None) -> Encoded:
    """The answer that an exception of the handler deserves (reference 6.5; V1: kserve reference 4).

    With ``model_dir`` it says what TorchServe leaves to the log: class, message, place and a hint.
    """
    status, text = _verdict(error, row)
    if model_dir is None or _is_meant_for_clients(error):
        return failure(text, status)
    hint = hint_for(error, row.kind)
    if row.kind in _KSERVE_KINDS and not is_out_of_memory(error):
        return failure(located(str(text), error, model_dir, hint), status)
    if isinstance(error, ContractBroken):
        return failure(located(f"{text}: {error}", error, model_dir, hint), status)
    return failure(f"{text}: {explain_failure(error, model_dir, hint)}", status)


def _is_meant_for_clients(error: Exception) -> bool:
    code = _attribute(error, "error_code")
    return isinstance(code, int) and any(c.__name__ == "PredictionException" for c in type(error).__mro__)


def _verdict(error: Exception, row: Row) -> tuple[int, object]:
    """Status and text for an exception, as TorchServe and KServe have them."""
    if _is_meant_for_clients(error):
        code, message = _attribute(error, "error_code"), _attribute(error, "message")
        return 507 if code == 413 else code, _message(error) if message is None else message
    if is_out_of_memory(error):
        return 507, "Out of resources"
    if isinstance(error, ContractBroken):
        return _kserve(row, 503), str(error) if row.kind in _KSERVE_KINDS else error.short
    if row.kind in _KSERVE_KINDS:
        return 500, in_short(f"{type(error).__name__} : {_message(error)}")
    return 503, "Prediction failed"


def failure(message: object, status: object, error_type: str = "") -> Encoded:
    """An answer that is an error."""
    content = sendable(message).encode()
    error_type = error_type or "InternalServerException"
    return Answer(len(content), http_status(status), failed=True, error_type=error_type), content


def http_status(value: Any) -> int:
    """A handler's status if a final answer can have it, otherwise 500."""
    try:
        status = int(value)
    except (TypeError, ValueError, OverflowError):
        return 500
    return status if 200 <= status <= 999 else 500


def _attribute(error: Exception, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - the exception is the user's own
        return None


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the exception is the user's own
        return ""


def rejection(state: BatchState, position: int) -> Encoded | None:
    """The answer to an instance that the handler itself turned away (``context.reject``)."""
    rejection = state.rejections.get(position)
    if rejection is None:
        return None
    status, message = rejection
    return failure(message, status, "BadRequestException" if status == 400 else "")


def timed(function: Callable[[], None]) -> float:
    """Calls and returns the seconds it took."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


_NONE: dict[str, str] = {}
_PLAIN = {"explain": "False", "url_path": ""}
_EXPLAIN = {"explain": "True", "url_path": ""}
_DESCRIBE = {"describe": "True"}


def _properties(row: Row) -> dict[str, str]:
    if row.kind == FIELDS:
        return _NONE  # gRPC has no headers (reference 20)
    if row.url_path:
        return {"explain": str(row.explain), "url_path": row.url_path}
    if row.kind == DESCRIBE:
        return _DESCRIBE
    return _EXPLAIN if row.explain else _PLAIN


def _headers(row: Row, decoded: Decoded | None) -> dict[str, Any]:
    return dict(request_headers(row, decoded.part_types if decoded is not None else {}))


def _kserve(row: Row, status: int) -> int:
    """A handler's fault is 500 on V1 and V2 routes (design, section 9)."""
    return 500 if row.kind in _KSERVE_KINDS else status


def call_budget(batch_size: int) -> int:
    """Calls that a failed batch may take: one guilty row among n costs 2*log2(n), several share the rest."""
    return 4 * math.ceil(math.log2(max(2, batch_size))) + 4
