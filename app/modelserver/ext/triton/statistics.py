"""Counts and durations of a model's requests, in the terms of Triton's statistics extension.

All of it is derived from what the metrics count anyway, and from sums of batches. A request that is spread
over several batches counts in the queue and in the computation once for each. Durations are in nanoseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion

# Preprocessing, inference and postprocessing, by Triton's names.
_PHASES = ("compute_input", "compute_infer", "compute_output")


@dataclass(slots=True)
class SizeTotals:
    """The batches of one size, and their seconds of each phase; ``for_requests``: the same seconds once for
    each request of a batch.
    """

    batches: int = 0
    requests: int = 0
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(_PHASES))
    for_requests: list[float] = field(default_factory=lambda: [0.0] * len(_PHASES))


class BatchTotals:
    """A version's batches by size. ``last`` is the time at which the last one ended, or 0."""

    def __init__(self) -> None:
        self.by_size: dict[int, SizeTotals] = {}
        self.last = 0.0

    def add(self, size: int, requests: int, handler_s: float, phases: tuple[float, float, float]) -> None:
        """A batch ended. A handler whose ``phases`` are all zero does nothing but infer."""
        totals = self.by_size.get(size)
        if totals is None:
            totals = self.by_size[size] = SizeTotals()
        totals.batches += 1
        totals.requests += requests
        for phase, seconds in enumerate(phases if any(phases) else (0.0, handler_s, 0.0)):
            totals.seconds[phase] += seconds
            totals.for_requests[phase] += requests * seconds
        self.last = time.time()


# By the metrics of versions, which another archive of the same version takes over.
_totals: WeakKeyDictionary[object, BatchTotals] = WeakKeyDictionary()


def sum_batches(model: ModelVersion) -> None:
    """Sums the batches of a version from now on."""
    if model.metrics not in _totals:
        totals = _totals[model.metrics] = BatchTotals()
        model.metrics.batches.followers.append(totals.add)


async def list_statistics(
    registry: Registry, name: str = "", version: str | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """The statistics of a version, of all versions of a model, or of all models; one in each turn of
    the event loop.

    Triton's tools look for versions that are whole numbers: one such as 1.0 is listed as 1, unless another
    version in the list has that number; the default version has the first choice. A version
    that the client names keeps its name.

    Raises ModelNotFound, ModelVersionNotFound.
    """
    if name and version is not None:
        yield statistics_of(registry.get(name, version))
        return
    models = registry.versions(name) if name else registry.versions()
    taken = {(model.name, model.version) for model in models}
    for model in sorted(models, key=lambda model: not registry.is_default(model)):
        number = model.version.partition(".")[0]
        free = number.isascii() and number.isdigit() and (model.name, number) not in taken
        taken.add((model.name, number))
        yield {**statistics_of(model), **({"version": number} if free else {})}
        await asyncio.sleep(0)


def statistics_of(model: ModelVersion) -> dict[str, Any]:
    """The statistics of one version, since it was registered."""
    metrics = model.metrics
    totals, batches = metrics.requests.totals, _totals.get(metrics) or BatchTotals()
    answered, queue = metrics.requests.seconds, metrics.batches.queue_seconds
    sizes = sorted(batches.by_size.items())
    requests = sum(each.requests for _, each in sizes)
    computed = {
        name: _duration(requests, sum(each.for_requests[phase] for _, each in sizes))
        for phase, name in enumerate(_PHASES)
    }
    success = _duration(
        sum(answered.counts) - totals.failed_answers.count, answered.total - totals.failed_answers.seconds
    )
    fail = _duration(totals.failed.count + round(metrics.requests.refused), totals.failed.seconds)
    none = _duration(0, 0.0)
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": round(batches.last * 1000),
        "inference_count": sum(size * each.batches for size, each in sizes),
        "execution_count": sum(each.batches for _, each in sizes),
        "inference_stats": {
            "success": success,
            "fail": fail,
            "queue": _duration(sum(queue.counts), queue.total),
            **computed,
            "cache_hit": none,
            "cache_miss": none,
        },
        "response_stats": {
            "0": {
                "compute_infer": computed["compute_infer"],
                "compute_output": computed["compute_output"],
                "success": success,
                "fail": fail,
                "empty_response": none,
                "cancel": _duration(totals.cancelled.count, totals.cancelled.seconds),
            }
        },
        "batch_stats": [
            {"batch_size": size}
            | {name: _duration(each.batches, each.seconds[phase]) for phase, name in enumerate(_PHASES)}
            for size, each in sizes
        ],
        "memory_usage": [],
    }


def _duration(count: int, seconds: float) -> dict[str, int]:
    # Sums that were subtracted may be slightly below zero.
    return {"count": max(0, count), "ns": max(0, round(seconds * 1e9))}
