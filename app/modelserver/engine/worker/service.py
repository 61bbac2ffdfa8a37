"""Runs one batch: decodes it, calls the handler, encodes the answers, and isolates failing instances.

A handler gets a list and returns a list of the same length; an exception fails the whole call. To limit the
effect, a batch of several that fails, or returns the wrong number of answers, is halved and retried, so that
only the failing instance gets the error. The number of calls is limited; rows undecided by then fail with
their batch's error.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from modelserver.engine.tensors.datatypes import TensorError
from modelserver.engine.wire.messages import (
    BODY,
    DESCRIBE,
    FIELDS,
    GPU_BROKEN,
    INSTANCE,
    TENSORS,
    Answer,
    Broken,
    Cancelled,
    Fitting,
    Load,
    Predict,
    Result,
    Row,
    ToWorker,
    TracedPredict,
    sendable,
)
from modelserver.engine.worker import tracing
from modelserver.engine.worker.channel import ServerChannel
from modelserver.engine.worker.rows.classes import NotClassifiable
from modelserver.engine.worker.rows.rows import Decoded, decode_row, request_headers, request_parameters
from modelserver.engine.worker.rows.tensor_rows import EmptyInput, UnknownOutput, decode_rows, encode_output
from modelserver.engine.worker.streaming import CLIENT_GONE, CallStream
from modelserver.engine.worker.work import (
    Encoded,
    Work,
    _kserve,
    describe_failure,
    failure,
    hint_about,
    http_status,
    rejection,
)
from modelserver_handlers import gpu_errors
from modelserver_handlers.answers import JSON, OCTETS, TEXT, Unserializable, encode_body, encode_instance
from modelserver_handlers.context import BatchState, Context, RequestProcessor
from modelserver_handlers.contract import check_contract
from modelserver_handlers.failures import explain_failure, in_short, print_failure
from modelserver_handlers.hints import OUTPUTS, hint_for
from modelserver_handlers.labels import Labels
from modelserver_handlers.loader import Entry
from modelserver_handlers.metrics.collected import HandlerMetrics
from modelserver_handlers.streaming import ClientsGone, exhaust, holds_generators
from modelserver_handlers.tensor_rows import TensorRows

# How many rows a call may have, once more have exhausted the GPU's memory.

# Batches that are split as they do not fit into the GPU's memory, before one is tried whole again.
SPLITS = 1000


class RowLimit:
    """Cuts batches of a handler that ran out of memory; ``report`` gets each change of ``most_rows``.

    ``most_rows`` is 0 where any number fits.
    """

    def __init__(self, batch_size: int, report: Callable[[int], None]) -> None:
        self.most_rows = 0
        self._batch_size = batch_size
        self._report = report
        self._split = 0

    def portions(self, indices: list[int]) -> list[list[int]]:
        """The rows for each call: all of them, or as many as fit into the GPU's memory."""
        if not 0 < self.most_rows < len(indices):
            return [indices] if indices else []
        self._split += 1
        if self._split == SPLITS:
            # There may be more memory by now.
            self._split = 0
            return [indices]
        return list(cut(indices, self.most_rows))

    def fits(self, work: Work, rows: int) -> None:
        """A call with so many rows has not exhausted the GPU's memory."""
        work.fitting = max(work.fitting, rows)
        if 0 < self.most_rows < rows:
            self._change(rows if rows < self._batch_size else 0)

    def learn(self, work: Work) -> None:
        """Limits later calls to what has fitted; not if a row that is too large alone may be the cause."""
        if work.fitting and not work.ran_out_alone and work.fitting != self.most_rows:
            self._change(work.fitting)

    def _change(self, rows: int) -> None:
        self.most_rows, self._split = rows, 0
        self._report(rows)


def cut(indices: list[int], size: int) -> Iterator[list[int]]:
    """Pieces of at most this size."""
    return (indices[start : start + size] for start in range(0, len(indices), size))


class Service:
    """Runs batches with a loaded handler: ``entry`` is called with (data, context)."""

    def __init__(self, entry: Entry, context: Context, load: Load, metrics: HandlerMetrics) -> None:
        self.entry = entry
        self.context = context
        # The answer to all rows once the GPU cannot be used any more.
        self.broken: Encoded | None = None
        self._broken_by: Exception | None = None
        self.limit = RowLimit(load.batch_size, self._report_limit)
        # Whether arrays and tensors in the answer to a body are sent as lists.
        self.lists = False
        # What the author of the handler wrote to answer batches.
        self.method = "handle"
        self._load = load
        self._labels = Labels(load.model_dir)
        self.metrics = metrics
        self.outlet: ServerChannel | None = None
        self._look: Callable[[], Sequence[ToWorker]] | None = None
        self._pause: Callable[[], None] | None = None
        self._running: dict[int, Work] = {}

    def connect(
        self,
        outlet: ServerChannel,
        look: Callable[[], Sequence[ToWorker]] | None = None,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Enables handlers to send parts of answers.

        ``look`` returns messages received meanwhile, ``pause`` waits until clients have read parts.
        """
        self.outlet = outlet
        self._look = look
        self._pause = pause

    def cancel(self, message: Cancelled) -> bool:
        """Marks rows as cancelled: no more parts are sent to their clients, and the handler can check it.

        Returns whether one of them was not.
        """
        if (work := self._running.get(message.sequence)) is None:
            return False
        before, work.cancelled = work.cancelled, work.cancelled | set(message.rows)
        return work.cancelled != before

    def finish(self, work: Work, seconds: float) -> tuple[Result, list[bytes]]:
        """The message that answers the batch, and the bytes after it."""
        self.forget(work)
        if work.ran_out:
            self.limit.learn(work)
        return work.result(seconds)

    def forget(self, work: Work) -> None:
        """Drops a batch that the server has taken back."""
        self._running.pop(work.sequence, None)

    def take(self, message: Predict, tail: memoryview) -> Work:
        """Decodes the batch of a message; rows that cannot be decoded are answered with 400."""
        work = self._receive(message.sequence, message.rows, tail)
        if isinstance(message, TracedPredict):
            work.trace = message.trace
        return work

    def _receive(self, sequence: int, rows: Sequence[Row], tail: memoryview) -> Work:
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
                # Checked once for all rows with the same, before a handler reads it.
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
        """Whether bodies are decoded, by the environment, which a handler may have changed."""
        variable = os.environ.get("TS_DECODE_INPUT_REQUEST")
        return self._load.decode_input_request if variable is None else variable == "true"

    def state(self, work: Work, indices: Sequence[int]) -> BatchState:
        """The context's state for a call with these rows."""
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
        """The stream for parts of a call with these (batch, row); None if the service is not connected."""
        if self.outlet is None:
            return None
        return CallStream(places, state, self.encode_part, self.outlet, self._look_around, self._pause)

    def _look_around(self) -> None:
        if self._look is not None:
            for message in self._look():
                if isinstance(message, Cancelled):
                    self.cancel(message)

    def run(self, work: Work) -> None:
        indices = work.open
        if self.limit.most_rows or self.broken is not None:
            self._run_each(work, self.limit.portions(indices))
        elif indices:
            self._run_rows(work, indices)

    def _run_each(self, work: Work, portions: Iterable[list[int]]) -> None:
        """Calls the handler for each of these rows."""
        for indices in portions:
            if self.broken is None:
                self._run_rows(work, indices)
            else:
                work.answer_all(indices, self.broken)

    def _run_rows(self, work: Work, indices: list[int]) -> None:
        state = self.state(work, indices)
        self.settle(work, indices, state, lambda: self.call(work.select(indices), state))

    def settle(self, work: Work, indices: list[int], state: BatchState, call: Callable[[], Any]) -> None:
        """Answers these rows with the result of ``call``, or of further calls if it fails."""
        work.calls += 1
        failed: Exception | None = None
        broken: dict[int, Exception] = {}
        token = tracing.enter(work.trace) if work.trace else None
        try:
            outputs = call()
            check_contract(outputs, len(indices), self.method)
            if holds_generators(outputs) and state.stream is not None:
                outputs, broken = exhaust(outputs, state.stream)
        except ClientsGone:
            work.answer_all(indices, CLIENT_GONE)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            failed = error
        else:
            if work.ran_out or self.limit.most_rows:
                self.limit.fits(work, len(indices))
            for position, index in enumerate(indices):
                work.answers[index] = self.encode(work.rows[index], outputs, position, state)
            for position, cause in broken.items():
                row = work.rows[indices[position]]
                report_failure(cause, [row])
                work.answers[indices[position]] = self.describe(cause, row)
            work.add_phases(state.phases)
        finally:
            tracing.leave(token)
            if state.stream is not None:
                state.stream.close()
            if collected := self.metrics.collect():
                work.metrics += collected
        # Outside the except block, or the error would become the context of later ones.
        if failed is not None:
            self._blame(work, indices, failed, state)

    def begin(self, state: BatchState) -> None:
        self.context._ms_begin(state)
        self.metrics.request_ids = state.request_ids or {}

    def call(self, data: list[Any], state: BatchState) -> Any:
        self.begin(state)
        return self.entry(data, self.context)

    def _blame(self, work: Work, indices: list[int], error: Exception, state: BatchState) -> None:
        if gpu_errors.ran_out(error):
            work.note_shortage(len(indices))
        if not self._is_broken_by(error) and self._may_bisect(work, indices, error):
            if work.calls == 1:
                report_failure(error, [work.rows[index] for index in indices])
            gpu_errors.release(error)
            half = len(indices) // 2
            # Through the whole handler, as prepared data of a failed call is not trusted.
            for part in (indices[:half], indices[half:]):
                # Once it is known how many fit, unless a row that is too large alone is the cause.
                known = 0 if work.ran_out_alone else work.fitting
                self._run_each(work, cut(part, known or len(part)))
        else:
            self.fail(work, indices, error, state)

    def fail(self, work: Work, indices: list[int], error: Exception, state: BatchState) -> None:
        """Answers these rows with an exception of the handler, unless it has rejected them itself."""
        report_failure(error, [work.rows[index] for index in indices])
        self._is_broken_by(error)
        for position, index in enumerate(indices):
            refused = rejection(state, position) or self.broken
            work.answers[index] = refused or self._explain(error, work.rows[index])
        if self.broken is None:
            gpu_errors.release(error)

    def _may_bisect(self, work: Work, indices: list[int], error: Exception) -> bool:
        # Sent parts cannot be taken back, so such batches are not retried.
        several = len(indices) > 1 and self._load.isolate and not work.started
        if work.tensors is not None and work.tensors.changed:
            # The first call has changed the rows in place.
            return False
        # One failing row among n costs 2*log2(n) calls, several share the rest.
        budget = 4 * math.ceil(math.log2(max(2, self._load.batch_size, len(work.rows)))) + 4
        if gpu_errors.ran_out(error):
            # Ranks must stay in step, but only one of them may have run out.
            return several and work.ran_out < budget and self._load.ranks == 1
        return several and work.calls < budget and not gpu_errors.is_out_of_memory(error)

    def _is_broken_by(self, error: Exception) -> bool:
        """Whether the GPU cannot be used any more, of which the server is informed once."""
        if self.broken is None and gpu_errors.is_broken_by(error):
            model_dir = Path(self._load.model_dir)
            cause = explain_failure(error, model_dir)
            why = f": {explain_failure(error, model_dir, hint_for(error))}" if self._load.expose else ""
            answer, content = failure(f"{GPU_BROKEN}{why}", 500)
            self.broken = msgspec.structs.replace(answer, cause=cause), content
            # Kept with what its frames hold: torch aborts the process where a tensor cannot be freed, which
            # would be before the answers are sent.
            self._broken_by = error
            if self.outlet is not None:
                self.outlet.send(Broken(cause))
        return self.broken is not None

    def _report_limit(self, rows: int) -> None:
        if self.outlet is not None:
            self.outlet.send(Fitting(rows))

    def encode(self, row: Row, outputs: Any, position: int, state: BatchState) -> Encoded:
        """The answer to a row, for which the handler returned ``outputs[position]``."""
        try:
            return rejection(state, position) or self._answer(row, outputs[position], state.touched(position))
        except UnknownOutput as unknown:
            message = f"Unexpected inference output '{unknown}' for model '{self._load.model_name}'"
            return failure(message, 400, "BadRequestException")
        except NotClassifiable as error:
            return failure(str(error), 400, "BadRequestException")
        except EmptyInput:
            message = f"the inputs have no rows, but model '{self._load.model_name}' returned some"
            return failure(message, 400, "BadRequestException")
        except Unserializable as error:
            if row.kind == TENSORS:
                return failure(in_short(f"Unsupported model output data type: {error}"), 500)
            why = f" {in_short(str(error))}. Hint: {OUTPUTS}" if self._load.expose else ""
            return failure(f"Unsupported model output data type.{why}", _kserve(row, 503))
        except Exception as error:  # noqa: BLE001 - encoding runs methods of user objects
            report_failure(error, [row])
            return self.describe(error, row)

    def describe(self, error: Exception, row: Row) -> Encoded:
        """The answer for an exception of the handler; a setting decides how much it says to clients."""
        self._is_broken_by(error)
        return self.broken or self._explain(error, row)

    def _explain(self, error: Exception, row: Row) -> Encoded:
        model_dir = Path(self._load.model_dir)
        answer, content = describe_failure(error, row, model_dir if self._load.expose else None)
        return msgspec.structs.replace(answer, cause=explain_failure(error, model_dir)), content

    def encode_part(self, work: Work, index: int, part: Any, position: int, state: BatchState) -> Encoded:
        """A part of a row's answer; the first one sets status and headers."""
        row = work.rows[index]
        if index in work.started and type(part) is bytes and not state.rejections:
            # Bytes need no encoding, which matters where each token is a part.
            touched = state.touched(position)
            headers = _NONE if touched is None else touched.get_response_headers()
            fits = len(part) <= self._load.max_response_size
            if fits and headers.keys() <= {"content-type"} and row.kind not in {INSTANCE, TENSORS}:
                return Answer(len(part)), part
        encoded = self.encode(row, {position: part}, position, state)
        if encoded[0].failed:
            return encoded
        if index not in work.started:
            return _as_event(encoded, row)
        # Status and headers have been sent; only the header that ends sequences is for the server.
        end = self._load.sequence_headers.end.lower()
        ending = [header for header in encoded[0].headers or () if header[0].lower() == end]
        return Answer(encoded[0].size, headers=ending or None), encoded[1]

    def _answer(self, row: Row, output: Any, touched: RequestProcessor | None) -> Encoded:
        if row.kind == INSTANCE:
            content, content_type = encode_instance(output), JSON
        elif row.kind == TENSORS:
            content, content_type = encode_output(output, row, self._load.outputs, self._labels), ""
        else:
            content, content_type = encode_body(output, lists=self.lists)
            if content_type != JSON and not self._load.types:
                # As TorchServe (reference 6.4).
                content_type = ""
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
        parameters = getattr(touched, "_ms_parameters", None)
        packed = json.dumps(parameters).encode() if parameters else b""
        return Answer(len(content), status, content_type, phrase, rest, parameters=packed), content


def _receive_tensors(sequence: int, rows: Sequence[Row], tail: memoryview) -> Work | None:
    """A batch of tensors, decoded at once; None if its rows have several forms, or cannot be decoded."""
    form = rows[0].extra
    if not all(row.kind == TENSORS and row.extra == form for row in rows):
        return None
    try:
        data = decode_rows(rows, tail)
    except TensorError:
        return None
    tensors = data if isinstance(data, TensorRows) else None
    decoded: list[Decoded | None] = [Decoded(row, {}) for row in data]
    return Work(sequence, rows, decoded, [None] * len(rows), tensors=tensors)


def _as_event(first: Encoded, row: Row) -> Encoded:
    """The first part of a stream, as one of events if the client asks for these and the part is one."""
    answer, content = first
    if answer.content_type in {TEXT, OCTETS} and content.startswith(_EVENT):
        accepted = [value for name, value in request_headers(row, _NONE) if name.lower() == "accept"]
        if any("text/event-stream" in value.lower() for value in accepted):
            return msgspec.structs.replace(answer, content_type="text/event-stream"), content
    return first


def leave_if_broken(service: Service) -> None:
    """Ends the process if its GPU cannot be used any more; for after its answers have been sent."""
    if service.broken is not None and service.outlet is not None:
        # Not as the interpreter would: what uses the GPU at the exit could wait for it for ever.
        service.outlet.close()
        tracing.close_exporting()
        os._exit(1)


def report_failure(error: Exception, rows: Sequence[Row]) -> None:
    """Prints an exception of the handler with the ids of its requests."""
    print_failure(error, [row.request_id for row in rows], hint_about(error, rows[0]))


def timed(function: Callable[[], None]) -> float:
    """Calls the function and returns the seconds it took."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


_NONE: dict[str, str] = {}
# How a line of a stream of events begins.
_EVENT = (b"data:", b"event:", b"id:", b"retry:", b":")
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
