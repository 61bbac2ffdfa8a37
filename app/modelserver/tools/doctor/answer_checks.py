"""Checks of answers: alone and in batches, beside a bad row, and to an empty body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from modelserver.ext.rollout.agreement import LONGEST, Tolerance, agree, is_number, pairs, place
from modelserver.ext.rollout.agreement import excerpt as short_value
from modelserver.testing.answer import Answer
from modelserver.tools.commands import counted, message_of
from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.patient import BatchOutcome, Patient, place_in
from modelserver.tools.doctor.samples import InputRow, bad_samples

GIVE_SOME = "give some with --input FILE FILE"
# How often a row is sent again whose answer may vary.
_TRIES = 3
_RESULT = ("postprocess", "predict", "handle", "inference")
_INPUT = ("preprocess", "prepare", "predict", "handle")
TOLERANCE: Final = 1e-3
"""How far numbers may differ, as a share of the largest number in the answer."""
# The share of an answer's numbers that may differ, such as the class of a pixel on a border.
_STRAY: Final = 0.001


@dataclass(slots=True)
class AnswerChecks:
    """Checks of the answers to ``samples``; numbers may differ by ``tolerance``, see :data:`TOLERANCE`.

    ``alone`` has the answers to rows that are alone, by name.
    """

    report: CheckReport
    patient: Patient
    samples: Sequence[InputRow]
    tolerance: float
    alone: dict[str, Answer] = field(default_factory=dict)

    def check_alone(self, *, generated: bool = False) -> None:
        """Leaves only the samples that are answered alone; those that the model refuses are a finding.

        ``generated``: they are not the user's, and the model need not take them.
        """
        report = self.report
        for row in self.patient.rows(self.samples, len(self.samples)):
            outcome, again = self.patient.ask([row]), self.patient.ask([row])
            (answer,), (second,) = outcome.answers, again.answers
            if outcome.ended or again.ended:
                _note_end(report, outcome if outcome.ended else again, f"the input {row.name}")
            elif not answer.ok and generated:
                # Any input must get exactly one answer, also one that is refused.
                if not _note_count(report, outcome):
                    why = f"an input that was made is refused ({message_of(answer.body)}), {GIVE_SOME}"
                    report.left_out["answers"] = why
            elif not answer.ok:
                message = message_of(answer.body)
                seen = f"{row.name} was answered {answer.status}: {message}"
                report.add("input-refused", seen, place_in(message))
            elif not _note_count(report, outcome):
                self.alone[row.name] = answer
                if differs := difference(answer, second, self.tolerance):
                    _note_variance(report, row, differs)
        self.samples = [sample for sample in self.samples if sample.name in self.alone]
        if self.alone:
            report.checked.append("answers alone")

    def check_batches(self, sizes: Sequence[int]) -> None:
        """Rows in batches of these sizes are answered as if they were alone, in order."""
        report = self.report
        for size in sizes:
            rows = self.patient.rows(self.samples, size)
            outcome = self.patient.ask(rows)
            if outcome.ended:
                _note_end(report, outcome, f"a batch of {size} rows")
                return
            if _note_count(report, outcome) or _note_failure(report, outcome):
                return
            if not report.has("answers-vary"):
                self._compare(rows, outcome.answers)
        if report.has("answers-vary"):
            report.left_out["answers in batches"] = "the answers to the same request vary"
        else:
            report.checked.append("answers in batches of " + " and ".join(map(str, sizes)))

    def check_bad_row(self) -> None:
        """A bad row among good ones costs them nothing."""
        report = self.report
        good = self.patient.rows(self.samples, 2)
        for bad in bad_samples(self.samples[0]):
            outcome = self.patient.ask([good[0], bad, good[1]])
            first, refused, last = outcome.answers
            if outcome.ended:
                _note_end(report, outcome, f"{bad.name} beside good rows")
                return
            message = message_of(refused.body) if not refused.ok else short(refused)
            for row, answer in ((good[0], first), (good[1], last)):
                differs = difference(self.alone[row.name], answer, self.tolerance)
                if differs and not self._varies(row):
                    seen = f"Beside {bad.name}, {row.name} was answered {differs}."
                    report.add("bad-row-spreads", seen, place_in(message) or report.method(*_INPUT))
                    return
            if len(outcome.calls) > 1 and any(not call.is_whole for call in outcome.calls):
                seen = f"The handler was called {len(outcome.calls)} times for {bad.name} among two good rows"
                seen += f"; it was answered {refused.status}: {message}"
                report.add("bad-row-retried", seen, place_in(message) or report.method(*_INPUT))
                break
        report.checked.append("a bad row among good ones")

    def check_empty(self) -> None:
        """A request without a body is the client's mistake."""
        kind = self.samples[0].content_type if self.samples and not self.samples[0].is_json else ""
        (row,) = self.patient.rows([InputRow("an empty body", b"", kind)], 1)
        outcome = self.patient.ask([row])
        (answer,) = outcome.answers
        if outcome.ended:
            _note_end(self.report, outcome, "an empty body")
        elif answer.status >= 500:
            message = message_of(answer.body)
            seen = f"An empty body was answered {answer.status}: {message}"
            self.report.add("empty-body", seen, place_in(message) or self.report.method(*_INPUT))
        self.report.checked.append("an empty body")

    def check_workers(self) -> None:
        """Another process answers rows as the first one did."""
        if self.report.has("answers-vary"):
            self.report.left_out["answers of another worker"] = "the answers to the same request vary"
            return
        self.patient.renew()
        for row in self.patient.rows(self.samples, len(self.samples)):
            (answer,) = self.patient.ask([row]).answers
            if differs := difference(self.alone[row.name], answer, self.tolerance):
                seen = f"In another worker process, {row.name} was answered {differs}."
                self.report.add("workers-differ", seen, self.report.method(*_RESULT))
                break
        self.report.checked.append("answers of another worker")

    def _varies(self, row: InputRow) -> bool:
        """Whether an answer is another one without any reason, which is a finding of its own."""
        for _ in range(_TRIES):
            if self.report.has("answers-vary"):
                break
            (again,) = self.patient.ask([row]).answers
            if differs := difference(self.alone[row.name], again, self.tolerance):
                _note_variance(self.report, row, differs)
        return self.report.has("answers-vary")

    def _compare(self, rows: Sequence[InputRow], answers: Sequence[Answer]) -> None:
        size, tolerance = len(rows), self.tolerance
        expected = [self.alone[row.name] for row in rows]
        for index, (row, alone, answer) in enumerate(zip(rows, expected, answers, strict=True)):
            differs = difference(alone, answer, tolerance)
            if not differs:
                continue
            if self._varies(row):
                return
            if _is_reordered(expected, answers, tolerance):
                whose = next(other.name for other in rows if self._is_answer(answer, other))
                kind, seen = "order-changed", f"got the answer of {whose}."
            else:
                hint = "" if tolerance == 0 else f" The tolerance is {tolerance:g} of the largest number."
                kind, seen = "answers-differ", f"was answered {differs}.{hint}"
            seen = f"In a batch of {size}, row {index} ({row.name}) {seen}"
            self.report.add(kind, seen, self.report.method(*_RESULT))
            return

    def _is_answer(self, answer: Answer, row: InputRow) -> bool:
        return not difference(self.alone[row.name], answer, self.tolerance)


def _note_variance(report: CheckReport, row: InputRow, differs: str) -> None:
    seen = f"The same request again: {row.name} was answered {differs}."
    report.add("answers-vary", seen, report.method(*_RESULT))


def _is_reordered(expected: Sequence[Answer], actual: Sequence[Answer], tolerance: float) -> bool:
    left = list(actual)
    for each in expected:
        same = next((other for other in left if not difference(each, other, tolerance)), None)
        if same is None:
            return False
        left.remove(same)
    return True


def _note_count(report: CheckReport, outcome: BatchOutcome) -> bool:
    """Whether the handler returned another number of answers, or none; that is a finding."""
    for call in outcome.calls:
        if not call.failed and not call.is_whole:
            returned = "no list" if call.answers < 0 else counted(call.answers, "answer")
            seen = f"For {counted(call.rows, 'row')} the handler returned {returned}."
            report.add("wrong-count", seen, report.method(*_RESULT))
            return True
    return False


def _note_failure(report: CheckReport, outcome: BatchOutcome) -> bool:
    """Whether a batch failed of rows that are answered alone; that is a finding."""
    failed = next((call for call in outcome.calls if call.failed), None)
    if failed is None:
        return False
    seen = f"A call with {failed.rows} rows failed, each of which is answered alone: {failed.error}"
    report.add("batch-failed", seen, failed.raised or report.method(*_INPUT))
    return True


def _note_end(report: CheckReport, outcome: BatchOutcome, what: str) -> None:
    messages = (message_of(answer.body) for answer in outcome.answers if answer.status >= 500)
    message = next(messages, outcome.ended)
    report.add("worker-ended", f"The worker ended with {what}: {message}", report.method("handle", *_INPUT))


def difference(alone: Answer, other: Answer, tolerance: float) -> str:
    """What differs, in words; empty if nothing does."""
    if alone.status != other.status:
        return f"status {other.status} instead of {alone.status}"
    if alone.body == other.body:
        return ""
    try:
        return _difference(json.loads(alone.body), json.loads(other.body), tolerance)
    except (ValueError, RecursionError, OverflowError):
        return f"{short(other)} instead of {short(alone)}"


def short(answer: Answer) -> str:
    """An answer in short."""
    text = " ".join(answer.text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(answer.body)} bytes)"


def _difference(left: Any, right: Any, tolerance: float) -> str:
    both = list(pairs(left, right))
    largest = max((abs(one) for _, one, _ in both if is_number(one)), default=0.0)
    slack = Tolerance(0.0, tolerance * largest)
    differing = [each for each in both if not agree(*each[1:], slack)]
    # A difference in structure is never tolerated.
    if len(differing) <= _STRAY * len(both) and not any(
        isinstance(one, (dict, list)) for _, one, _ in differing
    ):
        return ""
    path, one, other = differing[0]
    return f"{short_value(other)} instead of {short_value(one)}" + (f" at {place(path)}" if path else "")
