"""The server's metrics: TorchServe's (reference 15.3) and our own, per model version."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from modelserver.engine.telemetry.families import (
    GPU_FIELDS,
    HOST_FIELDS,
    LEGACY_NAMES,
    DefaultSeries,
    Families,
    MetricsMode,
)
from modelserver.engine.telemetry.handler_metrics import RESERVED_PREFIX, HandlerFamilies, ModelHandlerMetrics
from modelserver.engine.telemetry.metrics_config import MetricsConfig
from modelserver.engine.telemetry.model_metrics import ModelMetrics
from modelserver.engine.telemetry.prometheus import AnyFamily, Counter, Gauge, Histogram, MetricRegistry

if TYPE_CHECKING:
    from modelserver.engine.telemetry.system import SystemReading

# Which requests are health checks.

_REST: Final = re.compile(
    r"/ping|/livez|/readyz|/v2/health/(?:live|ready)|(?P<v1>/v1/models/[^/:]+)"
    r"|/v2/models/[^/]+(?P<version>/versions/[^/]+)?/ready"
)
_GRPC: Final = re.compile(
    r"grpc\.health\.v1\.Health/(?:Check|Watch)|[\w.]+\.GRPCInferenceService/(?:Server(?:Live|Ready)|ModelReady)"
    r"|[\w.]+\.InferenceAPIsService/Ping"
)


def probe_path(target: str) -> str:
    """The path of a health check, without the names in it; empty for other requests.

    ``target`` is path and query, or service and method of gRPC.
    """
    path = target.partition("?")[0].rstrip("/")
    if not path.startswith("/"):
        return path if _GRPC.fullmatch(path) else ""
    match = _REST.fullmatch(path)
    if match is None:
        return ""
    if match["v1"]:
        return "/v1/models/{name}"
    if path.startswith("/v2/models/"):
        return f"/v2/models/{{name}}{'/versions/{version}' if match['version'] else ''}/ready"
    return path


STALL_BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_log = logging.getLogger(__name__)


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
        self._registry = MetricRegistry(trailing_comma=as_torchserve)
        self._families = Families(self._registry, mode, config)
        self._handler_families = HandlerFamilies(
            self._registry, config, accepts_all=auto_detect, known_only=as_torchserve
        )
        self._handler_metrics: dict[str, ModelHandlerMetrics] = {}
        self._defaults: dict[str, DefaultSeries] = {}
        self._models: dict[str, dict[str, ModelMetrics]] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._by_version: list[AnyFamily] = []
        host = ("Host", self.hostname)
        self._requests_2xx, self._requests_4xx, self._requests_5xx = (
            self._families.values[f"Requests{digit}XX"].labels(*host) for digit in (2, 4, 5)
        )
        checks = "Answers to health checks, by class of status."
        self._probes = self.counter("modelserver_health_checks_total", checks, ("path", "code"))
        self._as_torchserve = as_torchserve
        blocked = "CPU time for which an event loop was blocked, if 10 ms or more."
        stalls = self.histogram("modelserver_loop_stall_seconds", blocked, bounds=STALL_BOUNDS)
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
                self._handler_metrics[name] = ModelHandlerMetrics(self._handler_families, name, self.hostname)
                self._defaults[name] = DefaultSeries(self._families, name, self.hostname)
            versions[version] = ModelMetrics(
                self._families,
                self._handler_metrics[name],
                self._defaults[name],
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
            del self._models[name], self._defaults[name]
            self._handler_metrics.pop(name).close()

    def counter(self, name: str, help_text: str, label_names: Sequence[str] = ()) -> Counter:
        """Adds a number that only grows. Raises ValueError if the name is taken."""
        return self._registry.add(Counter(name, help_text, label_names))

    def gauge(self, name: str, help_text: str, label_names: Sequence[str] = ()) -> Gauge:
        """Adds a number that goes up and down. Raises ValueError if the name is taken."""
        return self._registry.add(Gauge(name, help_text, label_names))

    def histogram(
        self, name: str, help_text: str, label_names: Sequence[str] = (), *, bounds: Sequence[float]
    ) -> Histogram:
        """Adds a distribution over these upper bounds. Raises ValueError if the name is taken."""
        return self._registry.add(Histogram(name, help_text, label_names, bounds=bounds))

    def follow_versions(self, *families: AnyFamily) -> None:
        """Series of these, whose first labels are a model and its version, leave when it is unregistered."""
        self._by_version += families

    def on_render(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` before each rendering, to set gauges; failures are logged and skipped."""
        self._callbacks.append(callback)

    def system(self, reading: SystemReading) -> None:
        """Shows a reading of the host (:func:`modelserver.engine.telemetry.system.SystemMonitor.read`)."""
        values = self._families.values
        for name, field in HOST_FIELDS.items():
            values[name].labels("Host", self.hostname).set(getattr(reading, field))
        for gpu in reading.gpus:
            for name, field in GPU_FIELDS.items():
                if (value := getattr(gpu, field)) is not None:
                    values[name].labels("Host", str(gpu.gpu_id), self.hostname).set(value)

    def family(self, name: str) -> AnyFamily | None:
        """The metric of this name, if there is one that others than the server may change."""
        return None if name.startswith(RESERVED_PREFIX) else self._registry.get(name)

    def families(self) -> list[AnyFamily]:
        """All metrics as they are now, whatever the mode."""
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001, PERF203 -- one broken gauge must not cost the whole scrape
                _log.warning("A metrics callback failed", exc_info=True)
        for family in self._by_version:
            for values, _ in family.series:
                if values[1] not in self._models.get(values[0], ()):
                    family.remove(*values)
        for versions in self._models.values():
            for model in versions.values():
                model.requests.count_answers()
        return self._registry.families

    def pieces(self, names: Sequence[str] = ()) -> Iterator[bytes]:
        """Yields the Prometheus text in pieces, between which the event loop may do other work.

        ``names`` are the query's `name[]` values, empty for everything.
        """
        if self._mode == "log":
            return
        self.families()
        if self._mode == "legacy":
            names = [name for name in LEGACY_NAMES if not names or name in names]
            if not names:
                return
        yield from self._registry.pieces(names)


def host_name() -> str:
    """The machine's host name, or `Unknown`."""
    try:
        return socket.gethostname() or "Unknown"
    except OSError:
        return "Unknown"
