"""The metrics of one model version: its requests, its batches and its workers.

Methods called for each request only add to series that were looked up when the model was registered. Only
registered versions have series, so clients cannot create any by requesting names (F69). Times are in seconds.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from modelserver.engine.telemetry.families import (
    LATENCY,
    QUEUE_LATENCY,
    REQUESTS,
    DefaultSeries,
    Families,
    VersionSeries,
)
from modelserver.engine.telemetry.handler_metrics import Dimensions, ModelHandlerMetrics
from modelserver.engine.telemetry.metric_log import log_model_metric
from modelserver.engine.telemetry.totals import Errors, Totals
from modelserver.errors import ModelServerError

DISPATCH_REASONS: Final = ("size", "delay", "idle", "flush")
REJECTION_REASONS: Final = (
    "requests",
    "bytes",
    "no_worker",
    "no_ticket",
    "sequences",
    "sequence_closed",
    "sequence_queue",
    "sequence_lost",
)
MOST_NEW: Final = 256  # requests whose observations are counted together
MAX_WORKERS: Final = 256  # with a load time per model version, as every restart creates a new worker name

# The class of a handler's exception, at the beginning of an error's cause.
_CLASS: Final = re.compile(r"\w+")


class RequestMetrics:
    """How a version's requests ended. ``seconds``, ``totals`` and ``errors`` are for reading.

    ``expired()`` counts a request whose deadline passed, ``split()`` one over several batches, and
    ``broken_off()`` a streamed response that failed after its first part.
    """

    def __init__(self, series: VersionSeries, families: Families, hostname: str) -> None:
        self._series = series
        self.totals, self.errors = Totals(), Errors()
        self.seconds = series.distribution("request_seconds")
        self._queue_time = families.values["QueueTime"].labels("Host", hostname)
        # TorchServe's counters of requests that named the version, and of those that did not.
        self._named, self._named_latency, self._named_queue_latency = (
            series.value(family, hostname) for family in (REQUESTS, LATENCY, QUEUE_LATENCY)
        )
        self._default, self._default_latency, self._default_queue_latency = series.defaults.values
        self._others = 0
        classes = [series.value("requests_total", f"{digit}xx") for digit in (2, 3, 4, 5)]
        self._ended_2xx = classes[0]
        # By the first digit of a status: handlers may answer with any up to 999.
        self._by_class = (*classes[-1:] * 2, *classes, *classes[-1:] * 4)
        self._cancelled = series.value("cancelled_total")
        self._expired = series.value("expired_total")
        for reason in REJECTION_REASONS:
            series.counter("rejected_total", reason)
        self.expired: Callable[[], None] = self._expired.add
        self.split: Callable[[], None] = series.value("split_requests_total").add
        self.broken_off: Callable[[], None] = series.value("broken_off_total").add

    def received(self, explicit_version: bool) -> None:
        """A request reached this version, whatever its outcome."""
        (self._named if explicit_version else self._default).add(1.0)

    def answered(self, latency_s: float, queue_s: float, explicit_version: bool) -> None:
        """A worker answered a request ``latency_s`` after its arrival, of which it queued ``queue_s``."""
        if explicit_version:
            self._named_latency.add(latency_s * 1e6)
            self._named_queue_latency.add(queue_s * 1e6)
        else:
            self._default_latency.add(latency_s * 1e6)
            self._default_queue_latency.add(queue_s * 1e6)
        self.seconds.new.append(latency_s)
        self._queue_time.set(queue_s * 1e3 // 1.0)

    def ended(self, status: int, request_id: str) -> None:
        """A request that counts as ``answered`` was, with another status than 200."""
        if not 200 <= status < 300:
            self._by_class[status // 100].add(1.0)
            self._others += 1
        if status >= 500:
            self._note("Status", status, f"The handler answered with status {status}.", request_id)

    def failed(self, error: ModelServerError, request_id: str, *, form: str = "") -> None:
        """A request was answered with this error, in the form of its client."""
        status = error.status_in(form)
        self._by_class[status // 100].add(1.0)
        if status >= 500:
            named = _CLASS.match(error.cause)
            kind = type(error).__name__ if named is None else named[0]
            self._note(kind, status, error.cause or error.message, request_id)

    def rejected(self, reason: str) -> None:
        """A request was refused; ``reason`` is a fixed word such as queue_full or no_worker."""
        self._series.counter("rejected_total", reason).add(1.0)

    def cancelled(self, seconds: float) -> None:
        """A request's client disconnected ``seconds`` after its arrival."""
        self._cancelled.add(1.0)
        self.totals.cancelled.add(seconds)

    def count_answers(self) -> None:
        """Counts those with a status of 2xx: the answers that are left, so that they need no counting."""
        left = sum(self.seconds.counts) - self.totals.failed_answers.count - self._others
        # One whose encoding fails was there before it was known to fail; a counter never goes back.
        self._ended_2xx.set(max(self._ended_2xx.value, left))

    @property
    def refused(self) -> float:
        """Requests so far that were refused before queueing."""
        return self._series.total("rejected_total")

    @property
    def unanswered(self) -> float:
        """Requests so far that were refused, expired, or left by their client."""
        return self._expired.value + self._cancelled.value + self.refused

    def _note(self, kind: str, status: int, message: str, request_id: str) -> None:
        counted_as = self.errors.add(kind, status, message, request_id)
        self._series.counter("errors_total", counted_as).add(1.0)


class BatchMetrics:
    """A version's batches and queue: distributions for reading, gauges to set, and what a batch counts.

    ``waited(seconds)`` counts the wait of an instance, and ``isolated(count)`` instances that made their
    batch fail. ``followers`` are called with the size of each batch, its requests, the handler's seconds, and
    those of its phases.
    """

    def __init__(self, series: VersionSeries, requests: RequestMetrics) -> None:
        self.followers: list[Callable[[int, int, float, tuple[float, float, float]], None]] = []
        self.queue_seconds = series.distribution("queue_seconds")
        self.sizes = series.distribution("batch_size")
        self._requests = series.distribution("batch_requests")
        self.fill_ratios = series.distribution("batch_fill_ratio")
        parts = ("preprocess_seconds", "inference_seconds", "postprocess_seconds")
        self._phases = [series.distribution(part) for part in parts]
        self.handler_seconds = series.distribution("handler_seconds")
        self._new_requests = 0
        self._distributions = (
            requests.seconds,
            self.queue_seconds,
            self.sizes,
            self._requests,
            self.fill_ratios,
            *self._phases,
            self.handler_seconds,
        )
        self.queue_requests = series.value("queue_requests")
        self.queue_instances = series.value("queue_instances")
        self.in_flight = series.value("batches_in_flight")
        self.failing = series.value("failing")
        self._dispatch = {reason: series.value("dispatch_total", reason) for reason in DISPATCH_REASONS}
        # No method, as it is called for each request.
        self.waited: Callable[[float], None] = self.queue_seconds.new.append
        self.isolated: Callable[[float], None] = series.value("isolated_total").add

    def finished(  # noqa: PLR0917 -- positional calls are quicker, and this runs for each batch
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
        self.sizes.new.append(size)
        self._requests.new.append(requests)
        self.fill_ratios.new.append(size / capacity)
        self.handler_seconds.new.append(handler_s)
        (self._dispatch.get(reason) or self._dispatch["flush"]).value += 1.0
        for follow in self.followers:
            follow(size, requests, handler_s, phases)
        if any(phases):
            for distribution, seconds in zip(self._phases, phases, strict=True):
                distribution.new.append(seconds)
        self._new_requests += requests
        if self._new_requests >= MOST_NEW:
            self._new_requests = 0
            for each in self._distributions:
                each.count_new()


class WorkerMetrics:
    """A version's workers."""

    def __init__(self, series: VersionSeries, families: Families, hostname: str) -> None:
        self._series = series
        self._host = ("Host", hostname)
        self._overhead = families.values["WorkerThreadTime"].labels(*self._host)
        self._load_times = families.values["WorkerLoadTime"]
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._states: dict[str, None] = {}
        series.counter("gpu_failures_total")

    def set_overhead(self, seconds: float) -> None:
        """The server's own share of the last batch's time (WorkerThreadTime)."""
        self._overhead.set(seconds * 1e3 // 1.0)

    def loaded(self, name: str, seconds: float) -> None:
        """A worker (`W-<id>-<model>_<version>`) was ready ``seconds`` after its creation."""
        self._loaded[name] = None
        if len(self._loaded) > MAX_WORKERS:
            self.gone(next(iter(self._loaded)))
        self._load_times.labels(name, *self._host).set(seconds * 1e3 // 1.0)

    def gone(self, name: str) -> None:
        """A worker has ended; its load time is no longer shown."""
        self._loaded.pop(name, None)
        self._load_times.remove(name, *self._host)

    def count(self, name: str, *labels: str) -> None:
        """Adds one to a counter, by fixed words."""
        self._series.counter(name, *labels).add(1.0)

    def set_wish(self, workers: int | None) -> None:
        """How many workers autoscaling wants; None if it is off, and nothing is shown."""
        if workers is None:
            self._series.remove("workers_wished")
        else:
            self._series.value("workers_wished").set(workers)

    def set_states(self, counts: Mapping[str, int]) -> None:
        """Workers by state; missing states have none."""
        self._states |= dict.fromkeys(counts)
        for state in self._states:
            self._series.value("workers", state).set(counts.get(state, 0))

    def close(self) -> None:
        for name in list(self._loaded):
            self.gone(name)


class ModelMetrics:
    """The metrics of one model version, made by :meth:`ServerMetrics.model`; ``series`` are all of them."""

    def __init__(
        self,
        families: Families,
        handler_metrics: ModelHandlerMetrics,
        defaults: DefaultSeries,
        name: str,
        version: str,
        *,
        hostname: str,
        logs_handler_metrics: bool,
    ) -> None:
        self.name = name
        self.version = version
        self._hostname = hostname
        self._handler_metrics = handler_metrics
        self._logs_handler_metrics = logs_handler_metrics
        self.series = VersionSeries(families, name, version, defaults)
        self.requests = RequestMetrics(self.series, families, hostname)
        self.batches = BatchMetrics(self.series, self.requests)
        if logs_handler_metrics:
            self.batches.followers.append(self._log_handler_times)
        self.workers = WorkerMetrics(self.series, families, hostname)

    def handler_metric(  # noqa: PLR0917 -- the order of a Measurement
        self, name: str, value: float, unit: str, kind: str, dimensions: Dimensions, request_id: str = ""
    ) -> None:
        """A handler emitted a metric; ``kind`` is counter, gauge or histogram, in any case."""
        if not self._logs_handler_metrics:
            self._handler_metrics.record(name, value, unit, kind, dimensions)
        elif listed := self._handler_metrics.families.as_listed(name, unit, kind, dimensions):
            unit, _, dimensions = listed
            log_model_metric(name, value, unit, dimensions, hostname=self._hostname, request_id=request_id)

    def _log_handler_times(
        self, _size: int, _requests: int, handler_s: float, phases: tuple[float, float, float]
    ) -> None:
        """What TorchServe's workers report for each batch (reference 12.5)."""
        dimensions = (("ModelName", self.name), ("Level", "Model"))
        for name, seconds in (("PredictionTime", handler_s), ("HandlerTime", sum(phases) or handler_s)):
            self.handler_metric(name, seconds * 1000.0, "ms", "gauge", dimensions)

    def close(self) -> None:
        self.workers.close()
        self.series.close()
