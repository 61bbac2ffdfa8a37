"""What a batch costs by its size, and which size to choose."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from modelserver.tools.tune.figure import fit_line
from modelserver.tools.tune.sweep import sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.tools.doctor.findings import CheckReport
    from modelserver.tools.doctor.patient import Patient
    from modelserver.tools.doctor.samples import InputRow

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
