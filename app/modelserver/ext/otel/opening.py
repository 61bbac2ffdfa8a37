"""What the server sends to a collector: traces and metrics, as the setting ``otel`` has it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.otel.sdk import close_within_grace
from modelserver.ext.otel.spans import Tracing
from modelserver.models.settings.settings import Settings

if TYPE_CHECKING:
    from modelserver.ext.otel.metrics import MetricsSender

_log = logging.getLogger("modelserver.tracing")


class OpenTelemetry:
    """Traces and metrics of a server. Nothing is sent before :meth:`start` and :meth:`send_metrics`."""

    def __init__(self, settings: Settings) -> None:
        self.has_traces = settings.otel in {"traces", "all"}
        self._traces = self.has_traces and is_enabled("traces")
        self._metrics = settings.otel in {"metrics", "all"} and is_enabled("metrics")
        self._tracing: Tracing | None = None
        self._sender: MetricsSender | None = None

    def start(self, note: Callable[[str, str], None]) -> Tracing | None:
        """Starts tracing, if the setting has it; ``note`` as in :class:`Tracing`."""
        if self._traces:
            self._tracing = Tracing.of_environment(note)
            _log.info("OpenTelemetry: traces are exported by OTLP, sampled by %s", self._tracing.sampler)
        return self._tracing

    async def send_metrics(self, metrics: ServerMetrics) -> None:
        """Sends the metrics every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds, until it is cancelled."""
        if not self._metrics:
            return
        made = await asyncio.to_thread(import_module, "modelserver.ext.otel.metrics")
        self._sender = sender = made.MetricsSender(metrics)
        _log.info("OpenTelemetry: metrics are exported by OTLP every %g s", sender.interval)
        await sender.run()

    async def close(self) -> None:
        """Sends the rest, for two seconds at most."""
        closing: list[Callable[[], None]] = []
        if self._sender is not None:
            closing.append(self._sender.finish())
        if self._tracing is not None:
            closing.append(self._tracing.shutdown)
        await asyncio.gather(*(asyncio.to_thread(close_within_grace, close) for close in closing))


def is_enabled(signal: str) -> bool:
    """Whether the environment allows to export `traces` or `metrics`."""
    exporter = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip().lower()
    if exporter not in {"", "otlp", "none"}:
        _log.warning("OTEL_%s_EXPORTER=%s is not supported; otlp is used", signal.upper(), exporter)
    return exporter != "none" and os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
