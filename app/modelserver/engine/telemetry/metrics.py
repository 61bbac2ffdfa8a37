"""The server's metrics: TorchServe's (reference 15.3) and our own, per model version.

Methods called for each request only add to series that were looked up when the model was registered. Only
registered versions have series, so clients cannot create any by requesting names (F69). Times are in seconds.
"""

from __future__ import annotations

import logging
import re
import socket
from collections import OrderedDict
from typing import TYPE_CHECKING, Literal, TypeAlias

from modelserver.engine.telemetry.handler_metrics import (
    RESERVED_PREFIX,
    Dimensions,
    HandlerFamilies,
    HandlerMetrics,
    torchserve_help,
)
from modelserver.engine.telemetry.metric_log import LoggedCounter, LoggedGauge, log_model_metric
from modelserver.engine.telemetry.probes import probe_path
from modelserver.engine.telemetry.prometheus import (
    FAMILY_KINDS,
    SECONDS_BOUNDS,
    AddedFamily,
    AnyFamily,
    Child,
    Counter,
    Distribution,
    Family,
    Gauge,
    Histogram,
    Registry,
    Value,
)
from modelserver.engine.telemetry.totals import Errors, Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from modelserver.engine.telemetry.collector import Reading
    from modelserver.engine.telemetry.metrics_config import MetricsConfig
    from modelserver.engine.telemetry.system import SystemReading
    from modelserver.errors import ModelServerError

MetricsMode: TypeAlias = Literal["prometheus", "log", "legacy"]

SIZE_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
# Finer than for the parts of a request, as percentiles are read from them.
# fmt: off
REQUEST_BOUNDS = (
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 30.0, 60.0,
)
# fmt: on
STALL_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
RATIO_BOUNDS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
DISPATCH_REASONS = ("size", "delay", "idle", "flush")
REJECTION_REASONS = (
    *("requests", "bytes", "no_worker", "no_ticket"),
    *("sequences", "sequence_closed", "sequence_queue", "sequence_lost"),
)
MOST_NEW = 256  # requests whose observations are counted together
MAX_WORKERS_SHOWN = 256  # per model version, as every restart creates a new worker name

_LEGACY_NAMES = (
    "ts_inference_requests_total",
    "ts_inference_latency_microseconds",
    "ts_queue_latency_microseconds",
)
_HOST = ("Level", "Hostname")
_TS_MODEL = ("model_name", "model_version", "hostname")
_MODEL = ("model_name", "model_version")
_DEFAULT_VERSION = "default"
_REJECTED = "modelserver_rejected_total"
# At the beginning of what is said about a handler's exception.
_CLASS = re.compile(r"\w+")

_log = logging.getLogger(__name__)


class _Families:
    """All families of the server, registered once."""

    def __init__(self, registry: Registry, mode: MetricsMode, config: MetricsConfig | None) -> None:
        self._registry = registry
        self._mode = mode
        self._config = config
        self._ours: set[str] = set()
        self._torchserve_requests()
        self._torchserve_host()
        self._batching()
        self._outcomes()
        self._unknown_ones()

    def _torchserve_requests(self) -> None:
        self.requests_2xx = self._ts_counter("Requests2XX", "Count", _HOST)
        self.requests_4xx = self._ts_counter("Requests4XX", "Count", _HOST)
        self.requests_5xx = self._ts_counter("Requests5XX", "Count", _HOST)
        requests, latency, queue_latency = _LEGACY_NAMES
        self.requests = self._ts_counter(requests, "Count", _TS_MODEL)
        self.latency = self._ts_counter(latency, "Microseconds", _TS_MODEL)
        self.queue_latency = self._ts_counter(queue_latency, "Microseconds", _TS_MODEL)
        self.queue_time = self._ts_gauge("QueueTime", "Milliseconds", _HOST)
        self.worker_thread_time = self._ts_gauge("WorkerThreadTime", "Milliseconds", _HOST)
        self.worker_load_time = self._ts_gauge("WorkerLoadTime", "Milliseconds", ("WorkerName", *_HOST))

    def _torchserve_host(self) -> None:
        self.host = {
            self._ts_gauge(name, unit, _HOST): field
            for name, unit, field in (
                ("CPUUtilization", "Percent", "cpu_percent"),
                ("MemoryUsed", "Megabytes", "memory_used_mb"),
                ("MemoryAvailable", "Megabytes", "memory_available_mb"),
                ("MemoryUtilization", "Percent", "memory_percent"),
                ("DiskUsage", "Gigabytes", "disk_used_gb"),
                ("DiskAvailable", "Gigabytes", "disk_available_gb"),
                ("DiskUtilization", "Percent", "disk_percent"),
            )
        }
        self.gpu = {
            self._ts_gauge(name, unit, ("Level", "DeviceId", "Hostname")): field
            for name, unit, field in (
                ("GPUMemoryUtilization", "Percent", "memory_percent"),
                ("GPUMemoryUsed", "Megabytes", "memory_used_mb"),
                ("GPUUtilization", "Percent", "utilization_percent"),
            )
        }

    def _batching(self) -> None:
        seconds, sizes = SECONDS_BOUNDS, SIZE_BOUNDS
        answered = "From a request's arrival to its answer."
        self.request_seconds = self._histogram("request_seconds", answered, REQUEST_BOUNDS)
        self.queue_seconds = self._histogram("queue_seconds", "Wait of an instance for its batch.", seconds)
        self.batch_size = self._histogram("batch_size", "Instances in a batch.", sizes)
        self.batch_requests = self._histogram("batch_requests", "Requests in a batch.", sizes)
        self.fill_ratio = self._histogram("batch_fill_ratio", "Instances / batch size.", RATIO_BOUNDS)
        self.preprocess = self._histogram("preprocess_seconds", "Preprocessing of a batch.", seconds)
        self.inference = self._histogram("inference_seconds", "Inference of a batch.", seconds)
        self.postprocess = self._histogram("postprocess_seconds", "Postprocessing of a batch.", seconds)
        self.handler = self._histogram("handler_seconds", "The handler's whole work on a batch.", seconds)
        self.queue_requests = self._gauge("queue_requests", "Requests waiting in the queue.")
        self.queue_instances = self._gauge("queue_instances", "Instances waiting in the queue.")
        self.in_flight = self._gauge("batches_in_flight", "Batches sent to workers and not yet answered.")
        self.workers = self._gauge("workers", "Workers by state.", "state")
        self.node_workers = self._gauge("node_workers", "Loaded workers on another machine.", "node")
        memory = "Resident memory of workers on another machine."
        self.node_memory = self._gauge("node_worker_memory_bytes", memory, "node")
        self.workers_wished = self._gauge("workers_wished", "Workers that autoscaling wants.")
        self.failing = self._gauge("failing", "Whether all of the last batches failed.")

    def _outcomes(self) -> None:
        self.ended = self._counter("requests_total", "Answered requests, by class of status.", "code")
        errors = "Requests answered with a status of 500 or more, by type of the error."
        self.errors = self._counter("errors_total", errors, "type")
        self.dispatch = self._counter("dispatch_total", "Batches sent, by reason.", "reason")
        self.rejected = self._counter("rejected_total", "Requests refused before queueing.", "reason")
        changes = "Changes of the number of workers by autoscaling."
        self.scalings = self._counter("scalings_total", changes, "direction", "reason")
        self.recycled = self._counter("workers_recycled_total", "Workers recycled, by reason.", "reason")
        gpus = "Workers replaced because they could not use their GPU any more."
        self.gpu_failures = self._counter("gpu_failures_total", gpus)
        self.cancelled = self._counter("cancelled_total", "Requests whose client disconnected.")
        self.expired = self._counter("expired_total", "Requests whose deadline passed.")
        self.split = self._counter("split_requests_total", "Requests split over several batches.")
        self.isolated = self._counter("isolated_total", "Instances that made their batch fail.")
        self.broken_off = self._counter(
            "broken_off_total", "Streamed responses that failed after their first part."
        )

    def _ts_counter(self, name: str, unit: str, labels: Sequence[str]) -> Counter:
        return self._torchserves(Counter, LoggedCounter, name, unit, labels)

    def _ts_gauge(self, name: str, unit: str, labels: Sequence[str]) -> Gauge:
        return self._torchserves(Gauge, LoggedGauge, name, unit, labels)

    def _torchserves(
        self,
        plain: type[AddedFamily],
        logged: Callable[..., AddedFamily],
        name: str,
        unit: str,
        labels: Sequence[str],
    ) -> AddedFamily:
        unit, labels = self._as_listed(name, plain.kind, unit, labels)
        help_text = torchserve_help(plain.kind, unit)
        # TorchServe's metrics that are not in the configuration are neither shown nor logged.
        if self._config is not None and name not in self._config.server:
            return plain(name, help_text, labels)
        if self._mode == "log" or (self._mode == "legacy" and name not in _LEGACY_NAMES):
            return self._registry.add(logged(name, help_text, labels, unit=unit))
        return self._registry.add(plain(name, help_text, labels))

    def _as_listed(self, name: str, kind: str, unit: str, labels: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Unit and label names of the configuration, if they match ours."""
        self._ours.add(name)
        spec = None if self._config is None else self._config.server.get(name)
        if spec is None:
            return unit, labels
        if spec.kind != kind or len(spec.dimensions) != len(labels):
            _log.warning(
                "metrics_config: %s is a %s of %s; its entry in the file is ignored",
                *(name, kind, ", ".join(labels)),
            )
            return unit, labels
        return spec.unit, spec.dimensions

    def _unknown_ones(self) -> None:
        """Metrics known only to the configuration are listed but never updated (reference 15.4)."""
        listed = {} if self._config is None else self._config.server
        for spec in listed.values():
            if spec.name not in self._ours and spec.name not in self._registry:
                help_text = torchserve_help(spec.kind, spec.unit)
                self._registry.add(FAMILY_KINDS[spec.kind](spec.name, help_text, spec.dimensions))

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return self._registry.add(Counter(f"modelserver_{name}", help_text, (*_MODEL, *labels)))

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return self._registry.add(Gauge(f"modelserver_{name}", help_text, (*_MODEL, *labels)))

    def _histogram(self, name: str, help_text: str, bounds: Sequence[float]) -> Histogram:
        return self._registry.add(Histogram(f"modelserver_{name}", help_text, _MODEL, bounds=bounds))


class ModelMetrics:
    """The metrics of one model version, created by :meth:`ServerMetrics.model`.

    ``request_seconds``, ``queue_seconds``, ``batch_sizes``, ``fill_ratios``, ``handler_seconds``,
    ``totals`` and ``errors`` are what was observed so far, for reading.
    """

    def __init__(
        self,
        families: _Families,
        handler_metrics: HandlerMetrics,
        name: str,
        version: str,
        *,
        hostname: str,
        logs_handler_metrics: bool,
    ) -> None:
        self.name = name
        self.version = version
        self._families = families
        self._hostname = hostname
        self._handler_metrics = handler_metrics
        self._logs_handler_metrics = logs_handler_metrics
        self._owned: list[tuple[Family[Value] | Family[Distribution], tuple[str, ...]]] = []
        self._worker_times: OrderedDict[str, None] = OrderedDict()
        self._counted: dict[tuple[str, ...], Value] = {}
        self._workers: dict[str, Value] = {}
        self._nodes: set[str] = set()
        self._wished: Value | None = None
        self.totals, self.errors = Totals(), Errors()
        f = families
        self._requests = self._own(f.requests, self._hostname)
        self._latency = self._own(f.latency, self._hostname)
        self._queue_latency = self._own(f.queue_latency, self._hostname)
        by_default = (self.name, _DEFAULT_VERSION, self._hostname)
        self._default_requests = f.requests.labels(*by_default)
        self._default_latency = f.latency.labels(*by_default)
        self._default_queue_latency = f.queue_latency.labels(*by_default)
        self._queue_time = f.queue_time.labels("Host", self._hostname)
        self._worker_thread_time = f.worker_thread_time.labels("Host", self._hostname)
        self.request_seconds = self._own(f.request_seconds)
        self.queue_seconds = self._own(f.queue_seconds)
        # Counts the seconds that an instance waited; no method, as it is called for each request.
        self.queue_wait: Callable[[float], None] = self.queue_seconds.new.append
        self.batch_sizes = self._own(f.batch_size)
        self._batch_requests = self._own(f.batch_requests)
        self.fill_ratios = self._own(f.fill_ratio)
        self._phases = [self._own(f.preprocess), self._own(f.inference), self._own(f.postprocess)]
        self.handler_seconds = self._own(f.handler)
        self._new_requests = self._others = 0
        self._of_requests = (
            *(self.request_seconds, self.queue_seconds, self.batch_sizes, self._batch_requests),
            *(self.fill_ratios, *self._phases, self.handler_seconds),
        )
        self._queue_requests = self._own(f.queue_requests)
        self._queue_instances = self._own(f.queue_instances)
        self._in_flight = self._own(f.in_flight)
        self._failing = self._own(f.failing)
        self._own_outcomes(families)

    def _own_outcomes(self, f: _Families) -> None:
        classes = [self._own(f.ended, f"{digit}xx") for digit in (2, 3, 4, 5)]
        self._ended_2xx = classes[0]
        # By the first digit of a status: handlers may answer with any up to 999.
        self._by_class = (*classes[-1:] * 2, *classes, *classes[-1:] * 4)
        for reason in REJECTION_REASONS:
            self._counted[f.rejected.name, reason] = self._own(f.rejected, reason)
        self._dispatch = {reason: self._own(f.dispatch, reason) for reason in DISPATCH_REASONS}
        self._cancelled = self._own(f.cancelled)
        self._expired = self._own(f.expired)
        self._split = self._own(f.split)
        self._isolated = self._own(f.isolated)
        self._broken_off = self._own(f.broken_off)
        self._gpu_failures = self._own(f.gpu_failures)

    def request(self, explicit_version: bool) -> None:
        """A request reached this version, whatever its outcome."""
        (self._requests if explicit_version else self._default_requests).add(1.0)

    def answered(self, latency_s: float, queue_s: float, explicit_version: bool) -> None:
        """A worker answered a request ``latency_s`` after its arrival, of which it queued ``queue_s``."""
        if explicit_version:
            self._latency.add(latency_s * 1e6)
            self._queue_latency.add(queue_s * 1e6)
        else:
            self._default_latency.add(latency_s * 1e6)
            self._default_queue_latency.add(queue_s * 1e6)
        self.request_seconds.new.append(latency_s)
        self._queue_time.set(queue_s * 1e3 // 1.0)

    def ended(self, status: int, request_id: str) -> None:
        """A request that counts as ``answered`` was, with another status than 200."""
        if not 200 <= status < 300:
            self._count_status(status)
            self._others += 1
        if status >= 500:
            self._note("Status", status, f"The handler answered with status {status}.", request_id)

    def failed(self, error: ModelServerError, request_id: str, *, kserve: bool = False) -> None:
        """A request was answered with this error; ``kserve``: on a V1 or V2 route."""
        status = (error.kserve_status or error.status) if kserve else error.status
        self._count_status(status)
        if status >= 500:
            message = error.cause or error.message
            named = _CLASS.match(error.cause)
            self._note(type(error).__name__ if named is None else named[0], status, message, request_id)

    def _count_status(self, status: int) -> None:
        self._by_class[status // 100].add(1.0)

    def count_answers(self) -> None:
        """Counts those with a status of 2xx: the answers that are left, so that they need no counting."""
        left = sum(self.request_seconds.counts) - self.totals.failed_answers.count - self._others
        # One whose encoding fails was there before it was known to fail; a counter never goes back.
        self._ended_2xx.set(max(self._ended_2xx.value, left))

    def _note(self, kind: str, status: int, message: str, request_id: str) -> None:
        self._count(self._families.errors, self.errors.add(kind, status, message, request_id))

    def batch(  # noqa: PLR0917 -- positional calls are quicker, and this runs for each batch
        self,
        size: int,
        requests: int,
        capacity: int,
        reason: str,
        handler_s: float,
        phases: tuple[float, float, float],
    ) -> None:
        """A worker finished a batch of ``size`` instances of ``requests`` requests; ``capacity`` would have
        fit.

        ``reason`` is why it was sent: size, delay, idle or flush (others count as flush). ``phases`` are the
        seconds of preprocessing, inference and postprocessing; all zero if the handler does not separate
        them.
        """
        self.batch_sizes.new.append(size)
        self._batch_requests.new.append(requests)
        self.fill_ratios.new.append(size / capacity)
        self.handler_seconds.new.append(handler_s)
        self.totals.batch(size, requests, handler_s, phases)
        (self._dispatch.get(reason) or self._dispatch["flush"]).value += 1.0
        if self._logs_handler_metrics:
            # What TorchServe's workers log for each batch (reference 12.5).
            dimensions = (("ModelName", self.name), ("Level", "Model"))
            for name, seconds in (("PredictionTime", handler_s), ("HandlerTime", sum(phases) or handler_s)):
                self.model_metric(name, seconds * 1000.0, "ms", "gauge", dimensions)
        if any(phases):
            for observed, seconds in zip(self._phases, phases, strict=True):
                observed.new.append(seconds)
        self._new_requests += requests
        if self._new_requests >= MOST_NEW:
            self._new_requests = 0
            for each in self._of_requests:
                each.count_new()

    @property
    def refused(self) -> float:
        """Requests so far that were refused before queueing."""
        return sum(series.value for (name, *_), series in self._counted.items() if name == _REJECTED)

    @property
    def unanswered(self) -> float:
        """Requests so far that were refused, expired, or left by their client."""
        return self._expired.value + self._cancelled.value + self.refused

    def rejected(self, reason: str) -> None:
        """A request was refused; ``reason`` is a fixed word such as queue_full or no_worker."""
        self._count(self._families.rejected, reason)

    def cancelled(self, seconds: float) -> None:
        """A request's client disconnected ``seconds`` after its arrival."""
        self._cancelled.add(1.0)
        self.totals.cancelled.add(seconds)

    def expired(self) -> None:
        self._expired.add(1.0)

    def split(self) -> None:
        self._split.add(1.0)

    def isolated(self, count: int = 1) -> None:
        """``count`` instances were found to make their batch fail."""
        self._isolated.add(count)

    def broken_off(self) -> None:
        """A streamed response failed after its first part."""
        self._broken_off.add(1.0)

    def worker_overhead(self, seconds: float) -> None:
        """The server's own share of the last batch's time (WorkerThreadTime)."""
        self._worker_thread_time.set(seconds * 1e3 // 1.0)

    def worker_loaded(self, worker_name: str, seconds: float) -> None:
        """A worker (`W-<id>-<model>_<version>`) was ready ``seconds`` after its creation."""
        self._worker_times[worker_name] = None
        if len(self._worker_times) > MAX_WORKERS_SHOWN:
            self.worker_gone(next(iter(self._worker_times)))
        family = self._families.worker_load_time
        family.labels(worker_name, "Host", self._hostname).set(seconds * 1e3 // 1.0)

    def worker_gone(self, worker_name: str) -> None:
        """A worker has ended; its load time is no longer shown."""
        self._worker_times.pop(worker_name, None)
        self._families.worker_load_time.remove(worker_name, "Host", self._hostname)

    def scaled(self, direction: str, reason: str) -> None:
        """Autoscaling changed the number of workers, ``up`` or ``down``; ``reason`` is a fixed word."""
        self._count(self._families.scalings, direction, reason)

    def recycled(self, reason: str) -> None:
        """A worker was replaced because it reached a limit: ``memory`` or ``requests``."""
        self._count(self._families.recycled, reason)

    def gpu_failed(self) -> None:
        """A worker is replaced because it could not use its GPU any more."""
        self._gpu_failures.add(1.0)

    def wished(self, workers: int | None) -> None:
        """How many workers autoscaling wants; None if it is off, and nothing is shown."""
        if workers is None:
            self._families.workers_wished.remove(self.name, self.version)
            self._wished = None
            return
        if self._wished is None:
            self._wished = self._own(self._families.workers_wished)
        self._wished.set(workers)

    def model_metric(  # noqa: PLR0917 -- the order of a Measurement
        self, name: str, value: float, unit: str, kind: str, dimensions: Dimensions, request_id: str = ""
    ) -> None:
        """A handler emitted a metric; ``kind`` is counter, gauge or histogram, in any case."""
        if self._logs_handler_metrics:
            if listed := self._handler_metrics.families.as_listed(name, unit, kind, dimensions):
                unit, _, dimensions = listed
                log_model_metric(
                    name, value, unit, dimensions, hostname=self._hostname, request_id=request_id
                )
        else:
            self._handler_metrics.record(name, value, unit, kind, dimensions)

    def set_queue(self, requests: int, instances: int) -> None:
        """What is waiting; for a :meth:`ServerMetrics.on_render` callback, as are the next three."""
        self._queue_requests.set(requests)
        self._queue_instances.set(instances)

    def set_in_flight(self, batches: int) -> None:
        self._in_flight.set(batches)

    def set_failing(self, failing: bool) -> None:
        self._failing.set(failing)

    def set_workers(self, counts: Mapping[str, int]) -> None:
        """Workers by state; missing states have none."""
        for state in counts:
            if state not in self._workers:
                self._workers[state] = self._own(self._families.workers, state)
        for state, series in self._workers.items():
            series.set(counts.get(state, 0))

    def set_nodes(self, nodes: Mapping[str, tuple[int, int]]) -> None:
        """Loaded workers on other machines and their bytes of memory; machines without any are not shown."""
        families, name, version = self._families, self.name, self.version
        for node in self._nodes - nodes.keys():
            families.node_workers.remove(name, version, node)
            families.node_memory.remove(name, version, node)
        for node, (workers, resident) in nodes.items():
            families.node_workers.labels(name, version, node).set(workers)
            families.node_memory.labels(name, version, node).set(resident)
        self._nodes = set(nodes)

    def close(self) -> None:
        self.set_nodes({})
        for worker_name in list(self._worker_times):
            self.worker_gone(worker_name)
        for family, values in self._owned:
            family.remove(*values)
        self._owned.clear()

    def _count(self, family: Counter, *labels: str) -> None:
        key = (family.name, *labels)
        if key not in self._counted:
            self._counted[key] = self._own(family, *labels)
        self._counted[key].add(1.0)

    def _own(self, family: Family[Child], *labels: str) -> Child:
        values = (self.name, self.version, *labels)
        self._owned.append((family, values))
        return family.labels(*values)


class ServerMetrics:
    """All metrics of a running server.

    ``mode`` is TorchServe's `metrics_mode`: prometheus shows everything, log writes TorchServe's metrics to
    the logs and shows nothing, legacy shows the three `ts_` counters and logs the rest. ``config`` lists the
    accepted metrics (reference 15.4); with ``auto_detect`` handlers may add others. ``as_torchserve``:
    without a ``config``, TorchServe's own list applies; lists of labels end with a comma; answers to health
    checks are among ``Requests2XX`` and its relatives, not only in a counter of their own.
    """

    def __init__(
        self,
        *,
        mode: MetricsMode = "prometheus",
        hostname: str | None = None,
        config: MetricsConfig | None = None,
        auto_detect: bool = False,
        as_torchserve: bool = False,
    ) -> None:
        self.hostname = hostname or host_name()
        self._mode = mode
        self._registry = Registry(trailing_comma=as_torchserve)
        self._families = _Families(self._registry, mode, config)
        self._handler_families = HandlerFamilies(
            self._registry, config, accepts_all=auto_detect, known_only=as_torchserve
        )
        self._handler_metrics: dict[str, HandlerMetrics] = {}
        self._models: dict[str, dict[str, ModelMetrics]] = {}
        self._callbacks: list[Callable[[], None]] = []
        host = ("Host", self.hostname)
        self._requests_2xx = self._families.requests_2xx.labels(*host)
        self._requests_4xx = self._families.requests_4xx.labels(*host)
        self._requests_5xx = self._families.requests_5xx.labels(*host)
        checks = "Answers to health checks, by class of status."
        self._probes = self.add(Counter("modelserver_health_checks_total", checks, ("path", "code")))
        self._as_torchserve = as_torchserve
        blocked = "CPU time for which an event loop was blocked, if 10 ms or more."
        stalls = self.add(Histogram("modelserver_loop_stall_seconds", blocked, bounds=STALL_BOUNDS))
        # Counts the seconds of a stall of the server or of a front end.
        self.stalled: Callable[[float], None] = stalls.labels().observe

    def response(self, status: int, target: str = "") -> None:
        """An HTTP response was sent by any listener; statuses other than 2xx and 4xx count as 5xx.

        ``target``: path and query, or service and method of gRPC, where it may have been a health check.
        """
        if target and (path := probe_path(target)):
            self._probes.labels(path, f"{status // 100}xx").add(1.0)
            if not self._as_torchserve:
                return
        if 200 <= status < 300:
            self._requests_2xx.add(1.0)
        elif 400 <= status < 500:
            self._requests_4xx.add(1.0)
        else:
            self._requests_5xx.add(1.0)

    def model(self, name: str, version: str) -> ModelMetrics:
        """The metrics of a registered version, created on first use; not for names from requests."""
        versions = self._models.setdefault(name, {})
        if version not in versions:
            if name not in self._handler_metrics:
                self._handler_metrics[name] = HandlerMetrics(self._handler_families, name, self.hostname)
            versions[version] = ModelMetrics(
                self._families,
                self._handler_metrics[name],
                name,
                version,
                hostname=self.hostname,
                logs_handler_metrics=self._mode != "prometheus",
            )
        return versions[version]

    def forget(self, name: str, version: str) -> None:
        """Removes the series of an unregistered version, and with the last version those of the model."""
        versions = self._models.get(name, {})
        forgotten = versions.pop(version, None)
        if forgotten is None:
            return
        forgotten.close()
        if not versions:
            del self._models[name]
            self._handler_metrics.pop(name).close()
            f = self._families
            for family in (f.requests, f.latency, f.queue_latency):
                family.remove(name, _DEFAULT_VERSION, self.hostname)

    def add(self, family: AddedFamily) -> AddedFamily:
        """Adds a metric defined elsewhere. Raises ValueError if its name is taken."""
        return self._registry.add(family)

    def on_render(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` before each rendering, to set gauges; failures are logged and skipped."""
        self._callbacks.append(callback)

    def system(self, reading: SystemReading) -> None:
        """Shows a reading of the host (:func:`modelserver.engine.telemetry.system.SystemMonitor.read`)."""
        for family, field in self._families.host.items():
            family.labels("Host", self.hostname).set(getattr(reading, field))
        for gpu in reading.gpus:
            for family, field in self._families.gpu.items():
                if (value := getattr(gpu, field)) is not None:
                    family.labels("Host", str(gpu.gpu_id), self.hostname).set(value)

    def collected(self, readings: Iterable[Reading]) -> None:
        """Shows the metrics of reference 15.3 and ``metrics_config`` that ``system_metrics_cmd`` printed."""
        for reading in readings:
            family = self._registry.get(reading.name)
            if family is None or reading.name.startswith(RESERVED_PREFIX):
                continue
            known = {"Hostname": self.hostname, **reading.dimensions}
            values = [known.get(label, "") for label in family.label_names]
            if isinstance(family, Histogram):
                family.labels(*values).observe(reading.value)
            elif isinstance(family, Gauge):
                family.labels(*values).set(reading.value)
            else:
                family.labels(*values).add(max(0.0, reading.value))

    def families(self) -> list[AnyFamily]:
        """All metrics as they are now, whatever the mode."""
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001, PERF203 -- one broken gauge must not cost the whole scrape
                _log.warning("A metrics callback failed", exc_info=True)
        for versions in self._models.values():
            for model in versions.values():
                model.count_answers()
        return self._registry.families

    def render(self, names: Sequence[str] = ()) -> bytes:
        """The Prometheus text; ``names`` are the query's `name[]` values, empty for everything."""
        return b"".join(self.pieces(names))

    def pieces(self, names: Sequence[str] = ()) -> Iterator[bytes]:
        """The same text in pieces, between which the event loop may do other work."""
        if self._mode == "log":
            return
        self.families()
        if self._mode == "legacy":
            names = [name for name in _LEGACY_NAMES if not names or name in names]
            if not names:
                return
        yield from self._registry.pieces(names)


def host_name() -> str:
    """The machine's host name, or `Unknown`."""
    try:
        return socket.gethostname() or "Unknown"
    except OSError:
        return "Unknown"
