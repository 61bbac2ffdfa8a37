"""A batch in the worker, and the answers for failures."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelserver.engine.wire.messages import INSTANCE, TENSORS, Answer, Measurement, Result, Row, sendable
from modelserver.engine.worker.rows.rows import Decoded
from modelserver_handlers.context import BatchState
from modelserver_handlers.contract import ContractBroken
from modelserver_handlers.errors import text_of
from modelserver_handlers.failures import explain_failure, for_clients, in_short, located
from modelserver_handlers.gpu_errors import is_out_of_memory
from modelserver_handlers.hints import hint_for
from modelserver_handlers.tensor_rows import TensorRows

Encoded = tuple[Answer, bytes]

_NO_PHASES = (0.0, 0.0, 0.0)
_KSERVE_KINDS = frozenset({INSTANCE, TENSORS})


@dataclass(slots=True, eq=False)
class Work:
    """A batch: the received rows, the handler's data, and the answers so far.

    ``decoded[i]`` is None if row ``i`` could not be decoded; ``answers[i]`` is then its error. ``started``
    are rows with parts already sent, ``cancelled`` those whose clients have disconnected. ``tensors``: all
    rows, if they are tensors in one piece. ``trace``: the handler's span, if a request is traced.
    ``ran_out``: calls that exhausted the GPU's memory, one with a single row if ``ran_out_alone``;
    ``fitting``: the most rows of a call that did not, 0 if there was none.
    """

    sequence: int
    rows: Sequence[Row]
    decoded: list[Decoded | None]
    answers: list[Encoded | None]
    phases: tuple[float, float, float] = _NO_PHASES
    calls: int = 0
    metrics: list[Measurement] = field(default_factory=list)
    started: Set[int] = frozenset()
    cancelled: Set[int] = frozenset()
    tensors: TensorRows | None = None
    trace: str = ""
    ran_out: int = 0
    ran_out_alone: bool = False
    fitting: int = 0

    def answer_all(self, indices: list[int], answer: Encoded | None) -> None:
        """Answers these rows alike."""
        for index in indices:
            self.answers[index] = answer

    def note_shortage(self, rows: int) -> None:
        """A call with so many rows has exhausted the GPU's memory."""
        self.ran_out += 1
        self.ran_out_alone |= rows == 1
        if self.fitting >= rows:
            self.fitting = 0

    def add_phases(self, seconds: tuple[float, float, float]) -> None:
        """A call of the handler took this long in its phases."""
        if seconds != _NO_PHASES:
            before, inference, after = self.phases
            self.phases = before + seconds[0], inference + seconds[1], after + seconds[2]

    @property
    def open(self) -> list[int]:
        """The rows that still need an answer."""
        return [index for index, answer in enumerate(self.answers) if answer is None]

    def select(self, indices: Sequence[int]) -> list[Any]:
        """The handler's data for these rows; copies of several, as these may be needed for a retry."""
        if self.tensors is not None:
            return self.tensors.pick(indices)
        rows = [row.data for index in indices if (row := self.decoded[index]) is not None]
        return [row.copy() for row in rows] if len(rows) > 1 else rows

    def result(self, seconds: float) -> tuple[Result, list[bytes]]:
        """The message that answers the batch, and the bytes after it."""
        done = [answer for answer in self.answers if answer is not None]
        answers = [answer for answer, _ in done]
        message = Result(self.sequence, answers, seconds, self.phases, self.calls, self.metrics or None)
        return message, [content for _, content in done]


def describe_failure(error: Exception, row: Row, model_dir: Path | None = None) -> Encoded:
    """The answer for an exception of the handler (reference 6.5; V1: kserve reference 4).

    With ``model_dir`` it includes what TorchServe only logs: class, message, location and a hint.
    """
    status, text = _verdict(error, row)
    if model_dir is None or for_clients(error) is not None:
        return failure(text, status)
    hint = hint_about(error, row)
    if row.kind in _KSERVE_KINDS and not is_out_of_memory(error):
        return failure(located(str(text), error, model_dir, hint), status)
    if isinstance(error, ContractBroken):
        return failure(located(f"{text}: {error}", error, model_dir, hint), status)
    return failure(f"{text}: {explain_failure(error, model_dir, hint)}", status)


def hint_about(error: BaseException, row: Row) -> str:
    """A hint about an exception of the handler, which had this row."""
    return hint_for(error, row.content_type, is_split=row.kind in _KSERVE_KINDS)


def failure(message: object, status: object, error_type: str = "") -> Encoded:
    """An error as an answer."""
    content = sendable(message).encode()
    error_type = error_type or "InternalServerException"
    return Answer(len(content), http_status(status), failed=True, error_type=error_type), content


def http_status(value: Any) -> int:
    """A handler's status if it is valid for a final answer, otherwise 500."""
    try:
        status = int(value)
    except (TypeError, ValueError, OverflowError):
        return 500
    return status if 200 <= status <= 999 else 500


def rejection(state: BatchState, position: int) -> Encoded | None:
    """The answer to an instance that the handler rejected (``context.reject``)."""
    rejection = state.rejections.get(position)
    if rejection is None:
        return None
    status, message = rejection
    return failure(message, status, "BadRequestException" if status == 400 else "")


def _kserve(row: Row, status: int) -> int:
    """500 on V1 and V2 routes (design, section 9), otherwise ``status``."""
    return 500 if row.kind in _KSERVE_KINDS else status


def _verdict(error: Exception, row: Row) -> tuple[int, object]:
    """Status and text for an exception, as in TorchServe and KServe."""
    if (meant := for_clients(error)) is not None:
        return (507, meant[1]) if meant[0] == 413 else meant
    if is_out_of_memory(error):
        return 507, "Out of resources"
    if isinstance(error, ContractBroken):
        return _kserve(row, 503), str(error) if row.kind in _KSERVE_KINDS else error.short
    if row.kind in _KSERVE_KINDS:
        return 500, in_short(f"{type(error).__name__} : {text_of(error)}")
    return 503, "Prediction failed"
