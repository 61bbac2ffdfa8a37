"""The content of the console's events: a few figures of each version, all of those whose pages are open,
and facts about versions when they change.

Figures are counts since the version was registered; the page takes differences. Everything is read from what
the server counts and knows anyway.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from modelserver.ext.console.histograms import quantile
from modelserver.ext.console.language import language_figures
from modelserver.models.options.table import OPTIONS
from modelserver.models.settings.key import property_text
from modelserver.surface.api.describe import describe, read_gpus_of

if TYPE_CHECKING:
    from collections.abc import Set

    from modelserver.engine.telemetry.metrics import ServerMetrics
    from modelserver.models.registry import Registry
    from modelserver.models.version import ModelVersion

# Processor seconds that each event spends on facts, unless they are new.
_FACTS_TIME: Final = 0.002
# Seconds at a stretch; then the event loop does other work.
_STRETCH: Final = 0.004
# Of a worker's output: lines, and characters; of a failure, characters.
_LINES: Final = 20
_MOST_OUTPUT: Final = 4000
_MOST_FAILURE: Final = 8000
_LONGEST_VALUE: Final = 300
_MEGABYTE: Final = 1 << 20

_encode = msgspec.json.Encoder().encode


class ConsoleState:
    """The figures and facts of the versions in ``registry`` that were collected last."""

    def __init__(self, registry: Registry, metrics: ServerMetrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._life = uuid4().hex
        self._at = 0.0
        # Of the histograms in figures: those of all versions are the same.
        self._bounds: dict[str, tuple[float, ...]] = {}
        self._figures: dict[str, msgspec.Raw] = {}
        # All figures of the versions whose pages are open.
        self._full: dict[str, msgspec.Raw] = {}
        # The latencies that were counted when figures were collected last.
        self._counts: dict[str, list[int]] = {}
        self._facts: dict[str, msgspec.Raw] = {}

    async def collect(self, opened: Set[str] = frozenset()) -> tuple[bytes, float]:
        """The changes since the last call, as one event, and the processor seconds that it took to collect
        them. ``opened``: the keys of versions of which all figures are needed.
        """
        await read_gpus_of(self._registry.versions())
        watch, at = _Stopwatch(), time.monotonic()
        versions = {f"{model.name}/{model.version}": model for model in self._registry.versions()}
        figures, counts = {}, {}
        for key, model in versions.items():
            counts[key] = list(model.metrics.requests.seconds.counts)
            figures[key] = msgspec.Raw(_encode(brief_of(model, self._counts.get(key))))
            await watch.give_way()
        self._full = self._full_of({key: model for key, model in versions.items() if key in opened})
        await watch.give_way()
        before = {key: facts for key, facts in self._facts.items() if key in versions}
        facts, until = dict(before), watch.total + _FACTS_TIME
        # New ones, and at least one of the others: the one whose facts are the oldest.
        new = [key for key in versions if key not in before]
        for number, key in enumerate([*new, *before]):
            if number > len(new) and watch.total > until:
                break
            facts.pop(key, None)
            model = versions[key]
            facts[key] = msgspec.Raw(_encode(facts_of(model, is_default=self._is_default(model))))
            await watch.give_way()
        self._at, self._figures, self._facts, self._counts = at, figures, facts, counts
        changed = {key: value for key, value in facts.items() if before.get(key) != value}
        return self._event(changed), watch.total

    def whole(self) -> bytes:
        """Everything that was collected last, as one event."""
        return self._event(self._facts)

    def forget(self) -> None:
        """The last viewer has left."""
        self._figures, self._full, self._facts, self._counts = {}, {}, {}, {}

    def opened(self, key: str) -> dict[str, Any]:
        """All figures of one version as they are now, if there is such a version."""
        models = [model for model in self._registry.versions() if f"{model.name}/{model.version}" == key]
        full = self._full_of(dict.fromkeys([key], models[0]) if models else {})
        return {"life": self._life, "at": round(time.monotonic(), 3), "bounds": self._bounds, "full": full}

    def _full_of(self, versions: dict[str, ModelVersion]) -> dict[str, msgspec.Raw]:
        # Only those that may have any cost the reading of all metrics.
        has_language = any(model.endpoints for model in versions.values())
        language, bounds = language_figures(self._metrics) if has_language else ({}, {})
        for model in versions.values():
            self._bounds = {**self._bounds, **bounds_of(model), **bounds}
        return {
            key: msgspec.Raw(_encode({**figures_of(model), "language": language.get(key)}))
            for key, model in versions.items()
        }

    def _event(self, facts: dict[str, msgspec.Raw]) -> bytes:
        """``life`` is another one after a restart of the server."""
        content = {
            "life": self._life,
            "at": round(self._at, 3),
            "bounds": self._bounds,
            "figures": self._figures,
            "full": self._full,
            "facts": facts,
        }
        return b"data: " + _encode(content) + b"\n\n"

    def _is_default(self, model: ModelVersion) -> bool:
        # It may have been unregistered meanwhile.
        return self._registry.has(model.name, model.version) and self._registry.is_default(model)


class _Stopwatch:
    """Counts the processor seconds of work that gives way to other work now and then."""

    def __init__(self) -> None:
        self._before = 0.0
        self._began = time.thread_time()

    @property
    def total(self) -> float:
        """The seconds so far."""
        return self._before + time.thread_time() - self._began

    async def give_way(self) -> None:
        """Lets the event loop do other work if it has not for some milliseconds."""
        if time.thread_time() - self._began > _STRETCH:
            self._before = self.total
            await asyncio.sleep(0)
            self._began = time.thread_time()


def bounds_of(model: ModelVersion) -> dict[str, tuple[float, ...]]:
    """The bounds of the buckets that figures count: of latencies, and of their parts."""
    metrics = model.metrics
    return {"latency": metrics.requests.seconds.bounds, "parts": metrics.batches.queue_seconds.bounds}


def brief_of(model: ModelVersion, before: list[int] | None) -> list[float | None]:
    """What the overview shows: requests that were answered, were not, and failed, those that wait, and p50
    and p99 in milliseconds since ``before``, the latencies that had been counted then.
    """
    requests = model.metrics.requests
    counts, bounds = requests.seconds.counts, requests.seconds.bounds
    lately = [] if before is None else [now - then for now, then in zip(counts, before, strict=True)]
    exact = (quantile(share, bounds, lately) for share in (0.5, 0.99))
    percentiles = [None if each is None else round(each, 2) for each in exact]
    waiting = model.pool.statistics().pending
    return [sum(counts), requests.unanswered, requests.errors.count, waiting, *percentiles]


def figures_of(model: ModelVersion) -> dict[str, Any]:
    """The part that changes all the time: counts, and the requests that wait and run now."""
    metrics, statistics = model.metrics, model.pool.statistics()
    counted = {
        "latency": metrics.requests.seconds,
        "queue": metrics.batches.queue_seconds,
        "handler": metrics.batches.handler_seconds,
    }
    summed = {"size": metrics.batches.sizes, "fill": metrics.batches.fill_ratios}
    return {
        # The sum, and how many fell into each bucket.
        **{name: [round(each.total, 6), *each.counts] for name, each in counted.items()},
        **{name: [round(each.total, 6), sum(each.counts)] for name, each in summed.items()},
        "unanswered": metrics.requests.unanswered,
        "errors": metrics.requests.errors.count,
        "waiting": statistics.pending,
        "running": statistics.batches_in_flight,
    }


def facts_of(model: ModelVersion, *, is_default: bool) -> dict[str, Any]:
    """The part that seldom changes: the description, workers with their last output, options with their
    sources.
    """
    described = describe(model)
    del described["jobQueueStatus"], described["sequences"]
    described["workers"] = [
        {
            **described_worker,
            "memoryUsage": described_worker["memoryUsage"] // _MEGABYTE,
            "failure": worker.failure[-_MOST_FAILURE:],
            "output": "" if worker.process is None else worker.process.last_output(_LINES)[-_MOST_OUTPUT:],
        }
        for worker, described_worker in zip(model.pool.workers, described["workers"], strict=True)
    ]
    failure = described.get("failure") or model.pool.failure
    return {
        **{key: value for key, value in described.items() if value is not None},
        "default": is_default,
        "endpoints": sorted(model.endpoints),
        "state": _state(model),
        "failure": failure[-_MOST_FAILURE:],
        "queueSize": model.pool.limits.max_requests,
        "options": _options(model),
    }


def _state(model: ModelVersion) -> str:
    """In one word: degraded with fewer workers than configured, failing while their batches fail, retrying
    while they fail to load, empty without any, or parked if a request loads it.
    """
    statistics, pool = model.pool.statistics(), model.pool
    if statistics.ready:
        if pool.failing:
            return "failing"
        return "ready" if statistics.ready >= min(pool.min_workers, len(pool.workers)) else "degraded"
    if pool.failure:
        return "retrying" if statistics.loading else "failed"
    if statistics.loading:
        return "loading"
    return "empty" if pool.crew.on_demand is None else "parked"


def _options(model: ModelVersion) -> list[tuple[str, str, str]]:
    """The key, value and source of each option."""
    options, rows = model.options, []
    for name, row in OPTIONS.items():
        if hasattr(options, name):
            value = getattr(options, name)
            text = _text(value)
            rows.append((row.key, text[:_LONGEST_VALUE], options.sources.get(name, "default")))
    return rows


def _text(value: object) -> str:
    """A value on one line; of one with parts, those that differ from the default."""
    if is_dataclass(value) and not isinstance(value, type):
        values = {each.name: getattr(value, each.name) for each in fields(value)}
        return ", ".join(f"{name}={it}" for name, it in values.items() if it != getattr(type(value)(), name))
    return property_text(getattr(value, "value", value))
