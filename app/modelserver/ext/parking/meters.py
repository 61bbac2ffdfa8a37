"""Metrics of models that are loaded on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.parking.memory import gpus_of
from modelserver.models.version import ModelVersion

if TYPE_CHECKING:
    from modelserver.ext.parking.resident import Resident

_LABELS = ("model_name", "model_version")
_STATES = ("parked", "waiting", "loading", "loaded", "failed")
_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ParkingMeters:
    """The metrics."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        counter, gauge, prefix = metrics.counter, metrics.gauge, "modelserver_"
        cold = "Requests that waited until their model was loaded."
        loads = "Loads for a request, or ahead of one."
        self._loads = counter(f"{prefix}loads_total", loads, (*_LABELS, "result"))
        took = "Seconds that loads took in the worker's process."
        self._seconds = metrics.histogram(f"{prefix}load_seconds", took, _LABELS, bounds=_BOUNDS)
        self._parks = counter(f"{prefix}parks_total", "How often a model was parked.", (*_LABELS, "reason"))
        self._cold = counter(f"{prefix}cold_requests_total", cold, _LABELS)
        ahead = "Loads before the model was expected to be used, by whether it was."
        self._prewarms = counter(f"{prefix}prewarms_total", ahead, (*_LABELS, "result"))
        self._memory = gauge(f"{prefix}model_memory_bytes", "Memory of a model's workers.", _LABELS)
        on_gpu = "Memory of a model's workers on a GPU."
        self._device_memory = gauge(f"{prefix}model_device_memory_bytes", on_gpu, (*_LABELS, "gpu_id"))
        metrics.follow_versions(self._loads, self._seconds, self._parks, self._cold, self._prewarms)
        metrics.follow_versions(self._memory, self._device_memory)
        self._states = gauge(f"{prefix}on_demand_models", "Models that are loaded on demand.", ("state",))
        self._budget = gauge(f"{prefix}models_memory_limit_bytes", "What max_models_memory allows.")

    def show(self, residents: Sequence[Resident], budget: Callable[[], float]) -> None:
        """Shows the states and the memory of these, as they are at the time."""

        def render() -> None:
            self._budget.labels().set(budget())
            counts = Counter(resident.state for resident in residents)
            for state in _STATES:
                self._states.labels(state).set(counts[state])
            for resident in residents:
                if not resident.model.metrics.series.is_hidden:
                    self._show_memory(resident)

        self._metrics.on_render(render)

    def _show_memory(self, resident: Resident) -> None:
        version = resident.model.name, resident.model.version
        self._memory.labels(*version).set(resident.memory)
        for gpu in gpus_of(resident.pool):
            self._device_memory.labels(*version, str(gpu)).set(resident.device_memory.get(gpu, 0))

    def loaded(self, model: ModelVersion, cold: int, seconds: float) -> None:
        self._loads.labels(model.name, model.version, "loaded").add(1.0)
        self._seconds.labels(model.name, model.version).observe(seconds)
        self._cold.labels(model.name, model.version).add(cold)

    def failed(self, model: ModelVersion) -> None:
        self._loads.labels(model.name, model.version, "failed").add(1.0)

    def parked(self, model: ModelVersion, reason: str) -> None:
        self._parks.labels(model.name, model.version, reason).add(1.0)

    def prewarmed(self, model: ModelVersion, result: str) -> None:
        self._prewarms.labels(model.name, model.version, result).add(1.0)
