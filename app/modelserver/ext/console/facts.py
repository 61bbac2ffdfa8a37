"""The content of the console's events: of each version what the overview shows, and everything of those whose
pages are open.

Figures are counts since the version was registered; the page takes differences. Everything is read from what
the server counts and knows anyway.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any, Final
from uuid import uuid4

import msgspec

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.system import worker_memory
from modelserver.ext.console.histograms import quantile
from modelserver.ext.console.language import language_figures
from modelserver.ext.console.stopwatch import Stopwatch
from modelserver.models.options.table import OPTIONS
from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion
from modelserver.surface.api.describe import describe

# Of a worker's output: lines, and characters; of a failure, characters.
_LINES: Final = 20
_MOST_OUTPUT: Final = 4000
_MOST_FAILURE: Final = 8000
_LONGEST_VALUE: Final = 300
_MEGABYTE: Final = 1 << 20

_encode = msgspec.json.Encoder().encode


class ConsoleState:
    """What was collected last of the versions in ``registry``."""

    def __init__(self, registry: Registry, metrics: ServerMetrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._life = uuid4().hex
        self._at = 0.0
        # Of the histograms in figures: those of all versions are the same.
        self._bounds: dict[str, tuple[float, ...]] = {}
        self._figures: dict[str, msgspec.Raw] = {}
        self._rows: dict[str, msgspec.Raw] = {}
        # The latencies that were counted when figures were collected last.
        self._counts: dict[str, list[int]] = {}
        # All figures and facts of the versions whose pages are open.
        self._full: dict[str, msgspec.Raw] = {}
        self._facts: dict[str, msgspec.Raw] = {}

    async def collect(self, opened: Set[str] = frozenset()) -> tuple[bytes, float]:
        """The changes since the last call, as one event, and the processor seconds that it took to collect
        them. ``opened``: the keys of versions of which everything is needed.
        """
        models = self._by_key()
        visible = {key: model for key, model in models.items() if key in opened}
        for model in visible.values():
            await model.read_gpus()
        watch, at = Stopwatch(), time.monotonic()
        figures, rows, counts, facts = {}, {}, {}, {}
        for key, model in models.items():
            counts[key] = list(model.metrics.requests.seconds.counts)
            figures[key] = msgspec.Raw(_encode(brief_of(model, self._counts.get(key))))
            rows[key] = msgspec.Raw(_encode(row_of(model, is_default=self._is_default(model))))
            await watch.give_way()
        for key, model in visible.items():
            facts[key] = self._facts_of(model)
            await watch.give_way()
        before = self._rows, self._facts
        self._at, self._counts, self._figures, self._rows = at, counts, figures, rows
        self._full, self._facts = self._full_of(visible), facts
        return self._event(_changed(before[0], rows), _changed(before[1], facts)), watch.total

    def whole(self) -> bytes:
        """Everything that was collected last, as one event."""
        return self._event(self._rows, self._facts)

    def forget(self) -> None:
        """The last viewer has left."""
        self._figures, self._rows, self._counts, self._full, self._facts = {}, {}, {}, {}, {}

    def opened(self, key: str) -> dict[str, Any]:
        """All figures and facts of one version as they are now, if there is such a version."""
        visible = {each: model for each, model in self._by_key().items() if each == key}
        return {
            "life": self._life,
            "at": round(time.monotonic(), 3),
            "full": self._full_of(visible),
            "bounds": self._bounds,
            "facts": {each: self._facts_of(model) for each, model in visible.items()},
        }

    def _by_key(self) -> dict[str, ModelVersion]:
        return {key_of(model): model for model in self._registry.versions()}

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

    def _facts_of(self, model: ModelVersion) -> msgspec.Raw:
        return msgspec.Raw(_encode(facts_of(model, is_default=self._is_default(model))))

    def _event(self, rows: dict[str, msgspec.Raw], facts: dict[str, msgspec.Raw]) -> bytes:
        """``life`` is another one after a restart of the server."""
        content = {
            "life": self._life,
            "at": round(self._at, 3),
            "bounds": self._bounds,
            "figures": self._figures,
            "rows": rows,
            "full": self._full,
            "facts": facts,
        }
        return b"data: " + _encode(content) + b"\n\n"

    def _is_default(self, model: ModelVersion) -> bool:
        # It may have been unregistered meanwhile.
        return (model.name, model.version) in self._registry and self._registry.is_default(model)


def key_of(model: ModelVersion) -> str:
    """Its name in events."""
    return f"{model.name}/{model.version}"


def _changed(before: dict[str, msgspec.Raw], after: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return {key: value for key, value in after.items() if before.get(key) != value}


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


def row_of(model: ModelVersion, *, is_default: bool) -> list[Any]:
    """What the overview shows beside figures: name, version, state, whether it is the default, workers that
    are ready and that there should be, their MiB, the device, its percent of the traffic, and the time (in
    seconds since the epoch) and type of the last error.
    """
    pool, last = model.pool, model.metrics.requests.errors.last
    scaling = pool.crew.autoscaling
    demanded = 0 if pool.crew.on_demand is None else len(pool.workers)
    wished = max(pool.min_workers, demanded, 0 if scaling is None else scaling.wish)
    traffic = None if model.traffic is None else model.traffic.describe(model.version)
    return [
        model.name,
        model.version,
        _state(model),
        is_default,
        pool.statistics().ready,
        wished,
        _memory_of(model) // _MEGABYTE,
        model.options.device_type,
        traffic and traffic.get("effective"),
        *((round(last.at, 3), last.type) if last is not None else ()),
    ]


def _memory_of(model: ModelVersion) -> int:
    """The bytes that its workers use."""
    total = 0
    for worker in model.pool.workers:
        node = None if worker.process is None else worker.process.node
        total += worker_memory(worker.pid) if node is None else node.resident
    return total


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
    if isinstance(value, Mapping):
        return json.dumps(value) if value else ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
