"""The whole check of one model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from modelserver.engine.pools.output import without_quote
from modelserver.errors import StartFailed
from modelserver.tools.doctor.answer_checks import GIVE_SOME, TOLERANCE, AnswerChecks
from modelserver.tools.doctor.endurance import check_calls, check_endurance
from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.load_checks import check_imports, check_requirements, check_training
from modelserver.tools.doctor.patient import Patient, WorkerGone, place_in
from modelserver.tools.doctor.samples import InputRow, made_samples
from modelserver.tools.tune.figure import fit_line
from modelserver.tools.tune.sweep import sizes

# What a batch costs by its size, and which size to choose.

_SECONDS: Final = 0.5  # for each size
_FEWEST, _MOST = 3, 15
# Milliseconds of a row below which the server's own work counts more.
_NOTHING: Final = 0.3
_GAIN: Final = 1.2
_CLOSE: Final = 1.15


def check_cost(
    report: CheckReport, patient: Patient, samples: Sequence[InputRow], largest: int, configured: int
) -> None:
    """Measures batches of growing sizes, and says what size is worth it; ``configured`` is the model's."""
    costs: dict[int, float] = {}
    times: dict[int, list[float]] = {}
    for size in sizes(largest):
        measured = _measured(patient, patient.rows(samples, size))
        if not measured or not any(measured):
            why = f"a batch of {size} rows fails" if measured is None else "its answers are streamed"
            report.left_out["cost of batches"] = why
            return
        times[size], costs[size] = measured, statistics.median(measured)
    line = fit_line(costs)
    report.figures["cost"] = {
        "ms_by_batch": {str(size): round(ms, 3) for size, ms in costs.items()},
        **({} if line is None else {"a_ms": round(line.a_ms, 3), "b_ms": round(line.b_ms, 3)}),
    }
    if line is None:
        report.left_out["cost of batches"] = "batches of one size cannot be compared"
        return
    alone, together = costs[1], costs[largest] / largest
    (least, most), (quickest, slowest) = _middle(times[1]), _middle(times[largest])
    if alone >= _NOTHING and least * largest < _GAIN * slowest and most * largest >= _GAIN * quickest:
        report.left_out["cost of batches"] = "the measured times vary too much to compare batches"
        return
    report.checked.append("cost of batches")
    if alone < _NOTHING:
        return
    seen = f"A row costs {alone:.3g} ms alone, and {together:.3g} ms in a batch of {largest}."
    # A negative intercept is noise of the measurement.
    if line.trusted and line.a_ms >= 0:
        seen += f" A batch of n rows takes {line.a_ms:.3g} + {line.b_ms:.3g}·n ms."
    if alone < _GAIN * together:
        advice = (
            "Compute all rows of a batch at once (one tensor) instead of one after the other; if that is not "
            "possible, batchSize: 1 is as good."
        )
        report.add("batch-cost", seen, report.method("inference", "predict", "handle"), advice)
        return
    best = next(size for size in costs if costs[size] / size <= _CLOSE * together)
    if configured < best:
        advice = f"Set batchSize: {best} in model-config.yaml, or batch_size={best} at the registration."
        report.add("batch-cost", seen, None, advice)


def _middle(times: Sequence[float]) -> tuple[float, float]:
    """The quartiles between which the middle half of the times lies."""
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, high


def _measured(patient: Patient, rows: Sequence[InputRow]) -> list[float] | None:
    """Milliseconds of the handler; None if it fails, 0.0 if they are not told."""
    times: list[float] = []
    began = time.monotonic()
    # The first call of a size may prepare something for it.
    for turn in range(_MOST + 1):
        outcome = patient.ask(rows)
        if outcome.ended or not all(answer.ok for answer in outcome.answers) or len(outcome.calls) != 1:
            return None
        if turn:
            times.append(outcome.answers[0].handling_ms)
        if turn >= _FEWEST and time.monotonic() - began > _SECONDS:
            break
    return times


LARGEST: Final = 8
"""The size of the largest batch, unless the model has a larger one or the user says otherwise."""
CALLS: Final = 200
"""How many calls the check of memory makes."""

_NO_INPUT: Final = f"nothing is known about its inputs: {GIVE_SOME}"
# After these findings, further checks of batches learn nothing.
_NO_BATCHES: Final = ("batch-failed", "wrong-count")
_ONE_INPUT: Final = "there is one input only: with two, mixed up answers could be seen"


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check, and how.

    Without ``samples`` some are made; without ``batch_size`` it is 8, or the model's if that is larger.
    ``settings`` are those of the client. ``tolerance`` is a part of the largest number of an answer.
    """

    source: str
    model_file: str | None = None
    samples: Sequence[InputRow] = ()
    batch_size: int | None = None
    tolerance: float = TOLERANCE
    calls: int = CALLS
    settings: Mapping[str, Any] = field(default_factory=dict)


def examine(wish: CheckOptions) -> CheckReport:
    """Loads the model and checks it. Raises ModelServerError and ConfigError for what is no model."""
    report = CheckReport()
    options = {} if wish.batch_size is None else {"batch_size": wish.batch_size}
    try:
        patient = Patient(wish.source, model_file=wish.model_file, settings={**wish.settings, **options})
        with patient:
            _examine(report, patient, wish)
    except StartFailed as failure:
        message = without_quote(failure.message.partition("': ")[2] or failure.message)
        report.add("load-failed", message, place_in(message))
    except WorkerGone as gone:
        report.left_out["further checks"] = "the worker ended, and no other one could load the model"
        report.add("worker-ended", without_quote(str(gone)) or "The worker ended.")
    report.findings.sort(key=lambda each: ("error", "warning", "advice").index(each.level))
    return report


def _examine(report: CheckReport, patient: Patient, wish: CheckOptions) -> None:
    model, loaded = patient.client.model, patient.loaded
    folder, configured = model.archive.model_dir, model.options.batch_size
    report.methods = dict(loaded.methods)
    report.checked.append("loading")
    check_imports(report, loaded, folder)
    check_requirements(report, folder, model.archive.manifest.requirements_file)
    check_training(report, loaded.training)
    largest = wish.batch_size or patient.grow(max(configured, LARGEST))
    samples = list(wish.samples) or made_samples(model, loaded.base)
    checks = AnswerChecks(report, patient, samples, wish.tolerance)
    if samples:
        checks.check_alone(generated=not wish.samples)
    if checks.samples:
        measurable = _check_batches(checks, largest)
        check_endurance(report, patient, checks.samples, wish.calls)
        if measurable:
            check_cost(report, patient, checks.samples, largest, configured)
    else:
        why = "no input was answered" if wish.samples else report.left_out.get("answers", _NO_INPUT)
        report.unanswered = why
        for name in ("answers", "answers in batches", "memory, threads and processes", "cost of batches"):
            report.left_out[name] = why
    checks.check_empty()
    if checks.samples:
        check_calls(report, patient.calls, folder)
        checks.check_workers()


def _check_batches(checks: AnswerChecks, largest: int) -> bool:
    """Whether the cost of batches can be measured."""
    report = checks.report
    if len(checks.samples) == 1:
        report.left_out["order"] = _ONE_INPUT
    sizes = sorted({min(2, largest), largest} - {1})
    if sizes:
        checks.check_batches(sizes)
        if not report.has(*_NO_BATCHES):
            checks.check_bad_row()
    else:
        report.left_out["answers in batches"] = "the batch size is 1"
    if checks.patient.is_concurrent:
        report.left_out["cost of batches"] = "requests join and leave one by one"
        return False
    return bool(sizes) and not report.has(*_NO_BATCHES)
