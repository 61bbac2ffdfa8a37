"""Checks of many calls: memory, threads, processes, files that are read again, networks that are built
again, gradients.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.load_checks import check_training
from modelserver.tools.doctor.patient import Patient, Readings
from modelserver.tools.doctor.probing import LOOKS_EVERY, Called, SourceLine
from modelserver.tools.doctor.samples import InputRow

# Growth per call that counts: bytes of memory, and blocks of Python's allocator.
_BYTES: Final = 8192
_BLOCKS: Final = 0.9
# The share of the growth that must continue when _LONGER times as many calls are made.
_STEADY: Final = 0.75
_LONGER: Final = 3
# A thread or process left by every _OFTEN calls is a finding.
_OFTEN: Final = 20
_SECONDS: Final = 60.0
_QUARTERS: Final = 4
# Fewer calls say nothing about growth.
FEWEST: Final = 2 * LOOKS_EVERY * _QUARTERS
_FEW: Final = 4
_MOST_OF_THE_CALLS: Final = 0.9
_MB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class EnduranceRun:
    """Readings before, during and after ``calls`` calls, one after each quarter, and Python's blocks."""

    calls: int
    looks: Sequence[Readings]
    blocks: Sequence[int]
    called: Sequence[Called]

    def growth(self, steady: float = 0.0) -> tuple[float, float]:
        """Bytes and blocks that are left by each call, 0.0 where it is not every quarter that leaves many.

        The first quarter does not count: it fills caches and pools. The last one must leave the ``steady``
        part of what the second one does.
        """
        quarter = self.calls / _QUARTERS
        resident = _steps([look.resident for look in self.looks][1:])
        step = max(1, len(self.blocks) // _QUARTERS)
        blocks = _steps(self.blocks[::-step][:_QUARTERS][::-1])
        return (
            _least(resident, quarter * _BYTES, steady) / quarter,
            _least(blocks, step * LOOKS_EVERY * _BLOCKS, steady) / (step * LOOKS_EVERY),
        )


def check_endurance(report: CheckReport, patient: Patient, samples: Sequence[InputRow], calls: int) -> None:
    """Asks one row at a time, so many times, unless that takes more than a minute."""
    watch = _watch(patient, samples, calls)
    if watch is None or watch.calls < FEWEST:
        made = "the worker ended, or was too slow" if watch is None else f"{watch.calls} calls were made"
        report.left_out["memory, threads and processes"] = f"{made}, {FEWEST} calls are needed"
        return
    first, last = watch.looks[0], watch.looks[-1]
    report.figures["memory"] = {
        "calls": watch.calls,
        "before_mb": round(first.resident / _MB, 1),
        "after_mb": round(last.resident / _MB, 1),
    }
    report.checked.append(f"memory, threads and processes after {watch.calls} calls")
    left = [_check_left(report, what, watch) for what in ("threads", "processes")]
    if not any(left):
        _check_memory(report, patient, samples, watch)


def _check_memory(
    report: CheckReport, patient: Patient, samples: Sequence[InputRow], watch: EnduranceRun
) -> None:
    """Memory that grows, and goes on growing: what only fills up, such as a cache, does not."""
    early = watch.growth()
    if not any(early):
        return
    longer = _watch(patient, samples, _LONGER * watch.calls)
    if longer is None:
        report.left_out["growth of memory"] = (
            f"it grew in {watch.calls} calls, and more took too long to tell"
        )
        return
    late, whole = longer.growth(_STEADY), watch.calls + longer.calls
    place = report.method("handle", "predict", "inference", "postprocess")
    if early[0] and late[0]:
        first, last = (each.looks[at].resident / _MB for each, at in ((watch, 0), (longer, -1)))
        seen = f"Memory grew from {first:.0f} to {last:.0f} MiB in {whole} calls"
        report.add("memory-grows", f"{seen}, {late[0] / 1024:.0f} KiB with each.", place)
    elif early[1] and late[1]:
        seen = f"Each call leaves {late[1]:.1f} objects behind, without end in {whole} calls."
        report.add("memory-grows", seen, place)


def _watch(patient: Patient, samples: Sequence[InputRow], calls: int) -> EnduranceRun | None:
    """None if the worker ends, or is too slow for so many calls."""
    began, known = time.monotonic(), len(patient.calls)
    quarter = max(1, calls // _QUARTERS)
    looks = [patient.readings()]
    for number in range(1, quarter * _QUARTERS + 1):
        row = patient.rows([samples[number % len(samples)]], 1)
        if patient.ask(row).ended or time.monotonic() - began > _SECONDS:
            return None
        if number % quarter == 0:
            looks.append(patient.readings())
    called = patient.calls[known:]
    blocks = [call.blocks for call in called if call.blocks is not None]
    whole = [look for look in looks if look is not None]
    return EnduranceRun(quarter * _QUARTERS, whole, blocks, called) if len(whole) == len(looks) else None


def _steps(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(values)]


def _least(steps: Sequence[int], worth: float, steady: float) -> float:
    """The mean, 0.0 if not all are worth mentioning, or they become less and less."""
    if not steps or min(steps) < worth or steps[-1] < steady * steps[0]:
        return 0.0
    return sum(steps) / len(steps)


def _check_left(report: CheckReport, what: Literal["threads", "processes"], watch: EnduranceRun) -> bool:
    """Whether calls leave some behind, which is a finding."""
    counts: list[int] = [getattr(look, what) for look in watch.looks]
    if min(_steps(counts[1:])) <= 0 or counts[-1] - counts[1] < watch.calls / _OFTEN:
        return False
    kind = "thread" if what == "threads" else "process"
    place = next(
        (each.place for call in watch.called for each in call.started if each.what == kind and each.place),
        None,
    )
    seen = f"The worker had {counts[0]} {what} before {watch.calls} calls, and {counts[-1]} after."
    report.add(f"{what}-left", seen, place or report.method("handle", "predict"))
    return True


def check_calls(report: CheckReport, calls: Sequence[Called], folder: Path) -> None:
    """What single calls did that belongs elsewhere."""
    if not calls:
        report.left_out["gradients, work of each call"] = "calls of an asynchronous handler overlap"
        return
    whole = [call for call in calls if not call.failed]
    _check_repeated(report, whole, folder)
    for call in whole:
        if call.has_gradients:
            seen = "The network computes with gradients, which nothing uses."
            place = call.gradients or report.method("inference", "predict", "handle")
            report.add("gradients-on", seen, place)
            break
    check_training(report, [each for call in whole for each in call.training])
    report.checked += ["gradients", "work of each call"]


def _check_repeated(report: CheckReport, calls: Sequence[Called], folder: Path) -> None:
    if len(calls) < _FEW:
        report.left_out["work of each call"] = f"{len(calls)} calls were made, {_FEW} are needed"
        return
    counted = Counter(path for call in calls for path in dict.fromkeys(each.path for each in call.opened))
    places: dict[str, SourceLine | None] = {}
    for call in calls:
        for each in call.opened:
            places[each.path] = places.get(each.path) or each.place
    for path, count in counted.items():
        if count >= _MOST_OF_THE_CALLS * len(calls):
            name = path.removeprefix(f"{folder}/")
            report.add("read-per-call", f"{name} is read in every call.", places[path])
    built = [call.built for call in calls if call.built is not None]
    if len(built) >= _MOST_OF_THE_CALLS * len(calls):
        report.add(
            "built-per-call", "A network is built, or its weights are loaded, in every call.", built[0]
        )
