"""The server's metrics by OTLP, with the names and labels that Prometheus reads.

They are not kept twice: every interval, the values of the registry become the SDK's points. Sums count from
the server's start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as sdk

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.otel.sdk import resource
from modelserver.ext.otel.spans import SCOPE

_log = logging.getLogger("modelserver.tracing")

_INTERVAL = 60_000  # the SDK's default
_LEAST = 100


Reading: TypeAlias = "tuple[Any, list[tuple[Mapping[str, str], Any]]]"
"""A family, and at one moment of each series its labels, and a number or a histogram's (counts, total)."""


def read(metrics: ServerMetrics) -> list[Reading]:
    """All metrics now. Belongs to the event loop's thread, as the metrics do."""
    return [
        (family, [(dict(zip(family.label_names, labels, strict=True)), now) for labels, now in series])
        for family in metrics.families()
        if (series := family.readings())
    ]


def points(readings: list[Reading], start: int, now: int) -> list[sdk.Metric]:
    """Converts readings to metrics of the SDK; times in nanoseconds since 1970."""
    return [
        sdk.Metric(family.name, family.help_text, "", _data(family, series, start, now))
        for family, series in readings
    ]


def _data(
    family: Any, series: list[tuple[Mapping[str, str], Any]], start: int, now: int
) -> sdk.Gauge | sdk.Sum | sdk.Histogram:
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    if family.kind == "histogram":
        # The extremes are not known, which OTLP allows.
        unknown: Any = None
        return sdk.Histogram(
            [
                sdk.HistogramDataPoint(
                    labels, start, now, sum(counts), total, counts, family.bounds, unknown, unknown
                )
                for labels, (counts, total) in series
            ],
            cumulative,
        )
    is_sum = family.kind == "counter"
    numbers = [sdk.NumberDataPoint(labels, start if is_sum else 0, now, value) for labels, value in series]
    return sdk.Sum(numbers, cumulative, is_monotonic=True) if is_sum else sdk.Gauge(numbers)


class MetricsSender:
    """Sends the metrics of a server regularly; a collector that hangs only delays the next time."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self.interval = interval()
        self._metrics = metrics
        self._start = time.time_ns()
        self._resource = resource()
        self._exporter = OTLPMetricExporter()

    async def run(self) -> None:
        """Sends them until it is cancelled."""
        while True:
            await asyncio.sleep(self.interval)
            readings = read(self._metrics)
            await asyncio.to_thread(self._send, readings)

    def finish(self) -> Callable[[], None]:
        """Reads the metrics a last time; returns a function that sends them, for another thread."""
        readings = read(self._metrics)

        def send() -> None:
            self._send(readings)
            self._exporter.shutdown()

        return send

    def _send(self, readings: list[Reading]) -> None:
        metrics = points(readings, self._start, time.time_ns())
        scope = sdk.ScopeMetrics(SCOPE, metrics, "")
        try:
            self._exporter.export(sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope], "")]))
        except Exception:  # noqa: BLE001 - the next time may succeed
            _log.warning("The metrics could not be exported", exc_info=True)


def interval() -> float:
    """Seconds between two times, from ``OTEL_METRIC_EXPORT_INTERVAL`` in milliseconds."""
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    try:
        return max(_LEAST, float(text or _INTERVAL)) / 1000.0
    except ValueError:
        _log.warning("OTEL_METRIC_EXPORT_INTERVAL=%s is not a number; it is %d", text, _INTERVAL)
        return _INTERVAL / 1000.0
