"""The whole check of one model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from modelserver.engine.pools.output import without_quote
from modelserver.errors import StartFailed
from modelserver.tools.doctor.answer_checks import (
    GIVE_SOME,
    TOLERANCE,
    check_alone,
    check_bad_row,
    check_batches,
    check_empty,
    check_workers,
)
from modelserver.tools.doctor.cost import check_cost
from modelserver.tools.doctor.endurance import check_calls, check_endurance
from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.load_checks import check_imports, check_requirements, check_training
from modelserver.tools.doctor.patient import Patient, WorkerGone, place_in
from modelserver.tools.doctor.samples import made_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelserver.testing.answer import Answer
    from modelserver.tools.doctor.samples import InputRow

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
    made = not wish.samples
    alone = check_alone(report, patient, samples, wish.tolerance, generated=made) if samples else {}
    samples = [sample for sample in samples if sample.name in alone]
    if samples:
        measurable = _check_batches(report, patient, samples, alone, wish, largest)
        check_endurance(report, patient, samples, wish.calls)
        if measurable:
            check_cost(report, patient, samples, largest, configured)
    else:
        why = "no input was answered" if wish.samples else report.left_out.get("answers", _NO_INPUT)
        report.unanswered = why
        for name in ("answers", "answers in batches", "memory, threads and processes", "cost of batches"):
            report.left_out[name] = why
    check_empty(report, patient, samples)
    if samples:
        check_calls(report, patient.calls, folder)
        check_workers(report, patient, samples, alone, wish.tolerance)


def _check_batches(  # noqa: PLR0917 - what is checked, and with what
    report: CheckReport,
    patient: Patient,
    samples: Sequence[InputRow],
    alone: dict[str, Answer],
    wish: CheckOptions,
    largest: int,
) -> bool:
    """Whether the cost of batches can be measured."""
    if len(samples) == 1:
        report.left_out["order"] = _ONE_INPUT
    sizes = sorted({min(2, largest), largest} - {1})
    if sizes:
        check_batches(report, patient, samples, alone, sizes, wish.tolerance)
        if not report.has(*_NO_BATCHES):
            check_bad_row(report, patient, samples, alone, wish.tolerance)
    else:
        report.left_out["answers in batches"] = "the batch size is 1"
    if patient.client.model.is_concurrent:
        report.left_out["cost of batches"] = "requests join and leave one by one"
        return False
    return bool(sizes) and not report.has(*_NO_BATCHES)
