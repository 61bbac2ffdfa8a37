"""What vLLM's engine says of its scheduler and its cache, as metrics of the handler.

An engine reports with each step. Changes are printed as metrics, at most once a second: other metrics are
sent with an answer, which may take minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import weakref
from collections.abc import Callable
from typing import Any, Final

from modelserver_handlers.context import Context
from modelserver_handlers.metrics.cache import Emission

# Seconds from one report to the next.
PAUSE: Final = 1.0
# The share of hits is that of about so many tokens of prompts.
_LATELY: Final = 100_000

GAUGES: Final = {
    "EngineRunningRequests": "count",
    "EngineWaitingRequests": "count",
    "EngineCacheUsage": "percent",
    "EnginePrefixHitRate": "percent",
}
PREEMPTIONS: Final = "EnginePreemptions"


# Engines of one model on one machine, at most.
_MOST_ENGINES: Final = 1024


class EnginePlace:
    """The lowest number that no other engine of this model on this machine has.

    It is the name of a socket, which is free again when the process has ended, however it ended. So a worker
    that replaces another has the same number.
    """

    def __init__(self, model_dir: str) -> None:
        self.number = 0
        held = socket.socket(socket.AF_UNIX)
        # Afterwards another engine may have the number.
        self.leave = weakref.finalize(self, held.close)
        model = hashlib.sha256(model_dir.encode()).hexdigest()
        for number in range(_MOST_ENGINES):
            with contextlib.suppress(OSError):
                held.bind(f"\0modelserver-engine-{model}-{number}")
                self.number = number
                break


def dimensions_of(context: Context, place: EnginePlace) -> tuple[tuple[str, str], ...]:
    """What distinguishes the engines of a model: version, machine, number, and the GPU if there is one."""
    described = (context.manifest or {}).get("model") or {}
    version = str(described.get("modelVersion") or "1.0")
    gpu = context.system_properties.get("gpu_id")
    named = (("ModelName", str(context.model_name)), ("Level", "Model"), ("ModelVersion", version))
    placed = (("Hostname", socket.gethostname()), ("Engine", str(place.number)))
    return (*named, *placed) if gpu is None else (*named, *placed, ("DeviceId", str(gpu)))


class EngineStatistics:
    """The figures of one engine. ``write`` gets the lines of a report."""

    def __init__(self, context: Context, write: Callable[[str], object]) -> None:
        self._place = EnginePlace(str(context.system_properties["model_dir"]))
        self._dimensions = dimensions_of(context, self._place)
        self._write = write
        # The last state of each scheduler: an engine may have several.
        self._schedulers: dict[int, Any] = {}
        self._lookups = self._hits = 0
        self._preemptions = 0
        self._reported: dict[str, float] = {}
        self._timer: asyncio.Handle | None = None
        self._next = 0.0

    def record(self, scheduler: Any, iteration: Any, engine: int = 0) -> None:
        """A step of the engine, with vLLM's ``SchedulerStats`` and ``IterationStats``."""
        if scheduler is not None:
            self._schedulers[engine] = scheduler
            self._lookups += scheduler.prefix_cache_stats.queries
            self._hits += scheduler.prefix_cache_stats.hits
        if iteration is not None:
            self._preemptions += iteration.num_preempted_reqs
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._next - loop.time()), self._report)

    def reset(self) -> None:
        """Reports that the engine has nothing to do."""
        self._schedulers.clear()
        self._reported.clear()
        self._write_changes()

    def close(self) -> None:
        """The engine ends."""
        self.reset()
        self._place.leave()

    def _report(self) -> None:
        self._timer = None
        self._next = asyncio.get_running_loop().time() + PAUSE
        self._write_changes()

    def _write_changes(self) -> None:
        states = list(self._schedulers.values())
        values = (
            sum(state.num_running_reqs for state in states),
            sum(state.num_waiting_reqs + state.num_skipped_waiting_reqs for state in states),
            max((round(100 * state.kv_cache_usage, 2) for state in states), default=0.0),
            round(100 * self._hits / self._lookups, 2) if self._lookups else 0.0,
        )
        lines = [
            self._line(name, value, unit, "gauge")
            for (name, unit), value in zip(GAUGES.items(), values, strict=True)
            if self._reported.get(name) != value
        ]
        self._reported = dict(zip(GAUGES, values, strict=True))
        if self._preemptions:
            lines.append(self._line(PREEMPTIONS, self._preemptions, "count", "counter"))
            self._preemptions = 0
        if self._lookups > _LATELY:
            self._lookups, self._hits = self._lookups // 2, self._hits // 2
        if lines:
            self._write("\n".join(lines))

    def _line(self, name: str, value: float, unit: str, kind: str) -> str:
        return Emission(name, value, unit, kind, self._dimensions).line


def reporter(kind: type[Any], statistics: EngineStatistics) -> Any:
    """The class of loggers that passes everything to ``statistics``.

    ``kind`` is vLLM's own class, which counts each token: vLLM adds one of it unless there is one already.
    """

    def nothing(*arguments: Any, **more: Any) -> None:
        """Ignores a call that this server does not need."""

    class Reporter(kind):  # type: ignore[misc]
        __init__ = log = log_engine_initialized = nothing
        record_sleep_state = record_admission_rejection = nothing

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            statistics.record(scheduler_stats, iteration_stats, engine_idx)

    return Reporter
