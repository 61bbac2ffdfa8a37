"""The families of metrics that a server has: TorchServe's (reference 15.3), and ours per model version."""

from __future__ import annotations

import logging
from typing import Final, Literal, TypeAlias

from modelserver.engine.telemetry.handler_metrics import torchserve_help
from modelserver.engine.telemetry.metric_log import LoggedCounter, LoggedGauge
from modelserver.engine.telemetry.metrics_config import MetricsConfig
from modelserver.engine.telemetry.prometheus import (
    FAMILY_KINDS,
    SECONDS_BOUNDS,
    Counter,
    Distribution,
    Family,
    Gauge,
    Histogram,
    MetricRegistry,
    Value,
)

MetricsMode: TypeAlias = Literal["prometheus", "log", "legacy"]
Labels: TypeAlias = tuple[str, ...]

SIZE_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
# Finer than for the parts of a request, as percentiles are read from them.
_REQUEST_BOUNDS: Final = """
    0.0005 0.001 0.0015 0.002 0.003 0.004 0.005 0.0075 0.01 0.015 0.02 0.03 0.04 0.05 0.075
    0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 1.5 2 3 5 7.5 10 30 60
"""
REQUEST_BOUNDS: Final = tuple(map(float, _REQUEST_BOUNDS.split()))
RATIO_BOUNDS: Final = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)

REQUESTS, LATENCY, QUEUE_LATENCY = LEGACY_NAMES = (
    "ts_inference_requests_total",
    "ts_inference_latency_microseconds",
    "ts_queue_latency_microseconds",
)
_HOST: Final = ("Level", "Hostname")
_GPU: Final = ("Level", "DeviceId", "Hostname")
_TS_MODEL: Final = ("model_name", "model_version", "hostname")
_MODEL: Final = ("model_name", "model_version")

# The gauges of a reading of the host or of a GPU, and the field that each one shows.
HOST_FIELDS: Final = {
    "CPUUtilization": "cpu_percent",
    "MemoryUsed": "memory_used_mb",
    "MemoryAvailable": "memory_available_mb",
    "MemoryUtilization": "memory_percent",
    "DiskUsage": "disk_used_gb",
    "DiskAvailable": "disk_available_gb",
    "DiskUtilization": "disk_percent",
}
GPU_FIELDS: Final = {
    "GPUMemoryUtilization": "memory_percent",
    "GPUMemoryUsed": "memory_used_mb",
    "GPUUtilization": "utilization_percent",
}
_UNITS: Final = {"percent": "Percent", "mb": "Megabytes", "gb": "Gigabytes"}

# Name, kind, unit, labels.
_TORCHSERVE: Final = (
    ("Requests2XX", "counter", "Count", _HOST),
    ("Requests4XX", "counter", "Count", _HOST),
    ("Requests5XX", "counter", "Count", _HOST),
    (REQUESTS, "counter", "Count", _TS_MODEL),
    (LATENCY, "counter", "Microseconds", _TS_MODEL),
    (QUEUE_LATENCY, "counter", "Microseconds", _TS_MODEL),
    ("QueueTime", "gauge", "Milliseconds", _HOST),
    ("WorkerThreadTime", "gauge", "Milliseconds", _HOST),
    ("WorkerLoadTime", "gauge", "Milliseconds", ("WorkerName", *_HOST)),
    *((name, "gauge", _UNITS[field.rpartition("_")[2]], _HOST) for name, field in HOST_FIELDS.items()),
    *((name, "gauge", _UNITS[field.rpartition("_")[2]], _GPU) for name, field in GPU_FIELDS.items()),
)
# Of ours: the name without `modelserver_`, the help, and the bounds, or the labels beside those of the model.
_HISTOGRAMS: Final = (
    ("request_seconds", "From a request's arrival to its answer.", REQUEST_BOUNDS),
    ("queue_seconds", "Wait of an instance for its batch.", SECONDS_BOUNDS),
    ("batch_size", "Instances in a batch.", SIZE_BOUNDS),
    ("batch_requests", "Requests in a batch.", SIZE_BOUNDS),
    ("batch_fill_ratio", "Instances / batch size.", RATIO_BOUNDS),
    ("preprocess_seconds", "Preprocessing of a batch.", SECONDS_BOUNDS),
    ("inference_seconds", "Inference of a batch.", SECONDS_BOUNDS),
    ("postprocess_seconds", "Postprocessing of a batch.", SECONDS_BOUNDS),
    ("handler_seconds", "The handler's whole work on a batch.", SECONDS_BOUNDS),
)
_GAUGES: Final[tuple[tuple[str, str, Labels], ...]] = (
    ("queue_requests", "Requests waiting in the queue.", ()),
    ("queue_instances", "Instances waiting in the queue.", ()),
    ("batches_in_flight", "Batches sent to workers and not yet answered.", ()),
    ("workers", "Workers by state.", ("state",)),
    ("workers_wished", "Workers that autoscaling wants.", ()),
    ("failing", "Whether all of the last batches failed.", ()),
)
_COUNTERS: Final[tuple[tuple[str, str, Labels], ...]] = (
    ("requests_total", "Answered requests, by class of status.", ("code",)),
    ("errors_total", "Requests answered with a status of 500 or more, by type of the error.", ("type",)),
    ("dispatch_total", "Batches sent, by reason.", ("reason",)),
    ("rejected_total", "Requests refused before queueing.", ("reason",)),
    ("scalings_total", "Changes of the number of workers by autoscaling.", ("direction", "reason")),
    ("workers_recycled_total", "Workers recycled, by reason.", ("reason",)),
    ("worker_failures_total", "Loaded workers whose process ended unexpectedly, by type.", ("type",)),
    ("gpu_failures_total", "Workers replaced because they could not use their GPU any more.", ()),
    ("cancelled_total", "Requests whose client disconnected.", ()),
    ("expired_total", "Requests whose deadline passed.", ()),
    ("split_requests_total", "Requests split over several batches.", ()),
    ("isolated_total", "Instances that made their batch fail.", ()),
    ("broken_off_total", "Streamed responses that failed after their first part.", ()),
)

_log = logging.getLogger(__name__)


class Families:
    """The families of a server's registry: ``values`` are counters and gauges, by TorchServe's names and by
    ours without `modelserver_`; ``histograms`` are all ours.
    """

    def __init__(self, registry: MetricRegistry, mode: MetricsMode, config: MetricsConfig | None) -> None:
        self.values: dict[str, Counter | Gauge] = {}
        self.histograms: dict[str, Histogram] = {}
        self._registry = registry
        self._mode = mode
        self._config = config
        for name, kind, unit, labels in _TORCHSERVE:
            self.values[name] = self._torchserve(name, kind, unit, labels)
        torchserve_names = set(self.values)
        for name, text, bounds in _HISTOGRAMS:
            family = Histogram(f"modelserver_{name}", text, _MODEL, bounds=bounds)
            self.histograms[name] = registry.add(family)
        for name, text, labels in _GAUGES:
            self.values[name] = registry.add(Gauge(f"modelserver_{name}", text, (*_MODEL, *labels)))
        for name, text, labels in _COUNTERS:
            self.values[name] = registry.add(Counter(f"modelserver_{name}", text, (*_MODEL, *labels)))
        # Other metrics of the configuration are listed but never updated (reference 15.4).
        for spec in () if config is None else config.server.values():
            if spec.name not in torchserve_names and spec.name not in registry:
                help_text = torchserve_help(spec.kind, spec.unit)
                registry.add(FAMILY_KINDS[spec.kind](spec.name, help_text, spec.dimensions))

    def _torchserve(self, name: str, kind: str, unit: str, labels: Labels) -> Counter | Gauge:
        spec = None if self._config is None else self._config.server.get(name)
        if spec is not None:
            if spec.kind == kind and len(spec.dimensions) == len(labels):
                unit, labels = spec.unit, spec.dimensions
            else:
                text = "metrics_config: %s is a %s of %s; its entry in the file is ignored"
                _log.warning(text, name, kind, ", ".join(labels))
        help_text = torchserve_help(kind, unit)
        plain, logged = (Counter, LoggedCounter) if kind == "counter" else (Gauge, LoggedGauge)
        # TorchServe's metrics that are not in the configuration are neither shown nor logged.
        if self._config is not None and spec is None:
            return plain(name, help_text, labels)
        if self._mode == "log" or (self._mode == "legacy" and name not in LEGACY_NAMES):
            return self._registry.add(logged(name, help_text, labels, unit=unit))
        return self._registry.add(plain(name, help_text, labels))


class DefaultSeries:
    """TorchServe's counters of requests that name no version; shown while series of a version are."""

    def __init__(self, families: Families, name: str, hostname: str) -> None:
        self._labels = (name, "default", hostname)
        self._owners = [families.values[family] for family in LEGACY_NAMES]
        self.values = [owner.labels(*self._labels) for owner in self._owners]
        self._visible = set[str]()

    def show(self, version: str) -> None:
        self._visible.add(version)
        for owner, value in zip(self._owners, self.values, strict=True):
            owner.restore(self._labels, value)

    def hide(self, version: str) -> None:
        self._visible.discard(version)
        if not self._visible:
            for owner in self._owners:
                owner.remove(*self._labels)


class VersionSeries:
    """The series that one version has in our families; :meth:`close` removes them."""

    def __init__(self, families: Families, name: str, version: str, defaults: DefaultSeries) -> None:
        self._families = families
        self.defaults = defaults
        defaults.show(version)
        self._model = (name, version)
        self._owned: dict[tuple[str, Labels], Family[Value] | Family[Distribution]] = {}
        self._counters: dict[Labels, Value] = {}
        self._hidden: list[tuple[Family[Value] | Family[Distribution], Labels, object]] = []

    def value(self, family: str, *labels: str) -> Value:
        """A series of a counter or gauge, shown from its first use on."""
        owner, values = self._families.values[family], (*self._model, *labels)
        self._owned[owner.name, values] = owner
        return owner.labels(*values)

    def distribution(self, family: str) -> Distribution:
        """A series of a histogram, shown from its first use on."""
        owner = self._families.histograms[family]
        self._owned[owner.name, self._model] = owner
        return owner.labels(*self._model)

    def counter(self, *key: str) -> Value:
        """The series of a counter; ``key`` is its name and labels."""
        if key not in self._counters:
            self._counters[key] = self.value(*key)
        return self._counters[key]

    def total(self, family: str) -> float:
        """The sum of the series of a counter that :meth:`counter` returned."""
        return sum(series.value for (name, *_), series in self._counters.items() if name == family)

    def remove(self, family: str, *labels: str) -> None:
        owner, values = self._families.values[family], (*self._model, *labels)
        self._owned.pop((owner.name, values), None)
        owner.remove(*values)

    @property
    def is_hidden(self) -> bool:
        """Whether they count, and are not shown."""
        return bool(self._hidden)

    def hide(self) -> None:
        """They count on, and are not shown until :meth:`show`."""
        for (_, values), owner in self._owned.items():
            if (child := owner.remove(*values)) is not None:
                self._hidden.append((owner, values, child))
        self.defaults.hide(self._model[1])

    def show(self) -> None:
        for owner, values, child in self._hidden:
            owner.restore(values, child)
        self._hidden.clear()
        self.defaults.show(self._model[1])

    def close(self) -> None:
        for (_, values), owner in self._owned.items():
            owner.remove(*values)
        self._owned.clear()
        self.defaults.hide(self._model[1])
