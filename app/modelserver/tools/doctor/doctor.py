"""The whole check of one model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from modelserver.engine.pools.output import without_quote
from modelserver.errors import StartFailed
from modelserver.tools.doctor.answering import (
    GIVE_SOME,
    check_alone,
    check_bad_row,
    check_batches,
    check_empty,
    check_workers,
)
from modelserver.tools.doctor.chart import Chart
from modelserver.tools.doctor.compare import TOLERANCE
from modelserver.tools.doctor.costing import check_cost
from modelserver.tools.doctor.enduring import check_calls, check_endurance
from modelserver.tools.doctor.loading import check_imports, check_requirements, check_training
from modelserver.tools.doctor.patient import Patient, WorkerGone, place_in
from modelserver.tools.doctor.samples import made_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from modelserver.testing.answer import Answer
    from modelserver.tools.doctor.samples import Sample

LARGEST: Final = 8
"""The size of the largest batch, unless the model has a larger one or the user says otherwise."""
CALLS: Final = 200
"""How many calls the check of memory makes."""

_NO_INPUT: Final = f"nothing is known about its inputs: {GIVE_SOME}"
# With these there is nothing more to learn from batches.
_NO_BATCHES: Final = ("batch-failed", "wrong-count")
_ONE_INPUT: Final = "there is one input only: with two, mixed up answers could be seen"


@dataclass(frozen=True, slots=True)
class Wish:
    """What to check, and how.

    Without ``samples`` some are made; without ``batch_size`` it is 8, or the model's if that is larger.
    ``settings`` are those of the client. ``tolerance`` is a part of the largest number of an answer.
    """

    source: str
    model_file: str | None = None
    samples: Sequence[Sample] = ()
    batch_size: int | None = None
    tolerance: float = TOLERANCE
    calls: int = CALLS
    settings: Mapping[str, Any] = field(default_factory=dict)


def examine(wish: Wish) -> Chart:
    """Loads the model and checks it. Raises ModelServerError and ConfigError for what is no model."""
    chart = Chart()
    options = {} if wish.batch_size is None else {"batch_size": wish.batch_size}
    try:
        patient = Patient(wish.source, model_file=wish.model_file, settings={**wish.settings, **options})
        with patient:
            _examine(chart, patient, wish)
    except StartFailed as failure:
        said = without_quote(failure.message.partition("': ")[2] or failure.message)
        chart.found("load-failed", said, place_in(said))
    except WorkerGone as gone:
        chart.left_out["further checks"] = "the worker ended, and no other one could load the model"
        chart.found("worker-ended", without_quote(str(gone)) or "The worker ended.")
    chart.findings.sort(key=lambda each: ("error", "warning", "advice").index(each.level))
    return chart


def _examine(chart: Chart, patient: Patient, wish: Wish) -> None:
    model, loaded = patient.client.model, patient.loaded
    folder, configured = model.archive.model_dir, model.options.batch_size
    chart.methods = dict(loaded.methods)
    chart.checked.append("loading")
    check_imports(chart, loaded, folder)
    check_requirements(chart, folder, model.archive.manifest.requirements_file)
    check_training(chart, loaded.training)
    largest = wish.batch_size or patient.grow(max(configured, LARGEST))
    samples = list(wish.samples) or made_samples(model, loaded.base)
    made = not wish.samples
    alone = check_alone(chart, patient, samples, wish.tolerance, made=made) if samples else {}
    samples = [sample for sample in samples if sample.name in alone]
    if samples:
        _ask_much(chart, patient, samples, alone, wish, _Sizes(configured, largest))
    else:
        why = "no input was answered" if wish.samples else chart.left_out.get("answers", _NO_INPUT)
        chart.unanswered = why
        for name in ("answers", "answers in batches", "memory, threads and processes", "cost of batches"):
            chart.left_out[name] = why
    check_empty(chart, patient, samples)
    if samples:
        check_calls(chart, patient.calls, folder)
        check_workers(chart, patient, samples, alone, wish.tolerance)


class _Sizes(NamedTuple):
    """The batch size that the model asks for, and the largest one to check."""

    configured: int
    largest: int


def _ask_much(  # noqa: PLR0917 - what is asked, and how
    chart: Chart,
    patient: Patient,
    samples: Sequence[Sample],
    alone: dict[str, Answer],
    wish: Wish,
    batch: _Sizes,
) -> None:
    options, largest = patient.client.model.options, batch.largest
    if len(samples) == 1:
        chart.left_out["order"] = _ONE_INPUT
    sizes = sorted({min(2, largest), largest} - {1})
    if sizes:
        check_batches(chart, patient, samples, alone, sizes, wish.tolerance)
        if not chart.has(*_NO_BATCHES):
            check_bad_row(chart, patient, samples, alone, wish.tolerance)
    else:
        chart.left_out["answers in batches"] = "the batch size is 1"
    check_endurance(chart, patient, samples, wish.calls)
    if options.continuous_batching or options.async_communication:
        chart.left_out["cost of batches"] = "requests join and leave one by one"
    elif sizes and not chart.has(*_NO_BATCHES):
        check_cost(chart, patient, samples, largest, batch.configured)
