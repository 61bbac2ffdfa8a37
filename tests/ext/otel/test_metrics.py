import asyncio
import logging

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from tests.ext.otel.collector import collector, environment

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.otel.metrics import MetricsSender, interval, points, read


def server_metrics():
    """The server's metrics, and one metric of each kind."""
    metrics = ServerMetrics(hostname="h")
    metrics.counter("own_total", "Counts.", ("kind",)).labels("a").add(3)
    metrics.gauge("own_level", "A level.").labels().set(-2.5)
    seconds = metrics.histogram("own_seconds", "Times.", ("kind",), bounds=(0.1, 1.0)).labels("b")
    for value in (0.05, 0.5, 0.7, 30.0):
        seconds.observe(value)
    metrics.counter("own_unused", "No series.", ("kind",))
    return metrics


def encoded(metrics):
    """By name, as a collector reads them."""
    scope = ScopeMetrics(InstrumentationScope("m"), points(read(metrics), 5, 9), "")
    message = encode_metrics(MetricsData([ResourceMetrics(Resource({}), [scope], "")]))
    return {each.name: each for each in message.resource_metrics[0].scope_metrics[0].metrics}


def test_each_kind_is_encoded():
    metrics = encoded(server_metrics())

    total = metrics["own_total"].sum
    (point,) = total.data_points
    assert (total.is_monotonic, total.aggregation_temporality) == (True, 2)
    assert (point.as_double, point.start_time_unix_nano, point.time_unix_nano) == (3.0, 5, 9)
    assert [(each.key, each.value.string_value) for each in point.attributes] == [("kind", "a")]
    assert metrics["own_total"].description == "Counts."
    assert metrics["own_level"].gauge.data_points[0].as_double == -2.5
    (point,) = metrics["own_seconds"].histogram.data_points
    assert list(point.bucket_counts) == [1, 2, 1]
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert (point.count, point.sum) == (4, 31.25)
    assert not point.HasField("min")
    assert "own_unused" not in metrics
    assert "Requests2XX" in metrics

    metrics = server_metrics()
    gauge = metrics.gauge("late", "Set late.").labels()
    metrics.on_render(lambda: gauge.set(7))

    assert encoded(metrics)["late"].gauge.data_points[0].as_double == 7


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, 60.0), ("", 60.0), ("500", 0.5), ("0", 0.1), ("soon", 60.0)]
)
def test_interval_is_read_in_milliseconds(monkeypatch, caplog, text, seconds):
    monkeypatch.delenv("OTEL_METRIC_EXPORT_INTERVAL", raising=False)
    if text is not None:
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", text)

    assert interval() == seconds
    assert bool(caplog.records) is (text == "soon")


async def test_metrics_are_sent(monkeypatch, caplog):
    """Again and again, and a last time at the end; a failure does not end it."""
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    with collector() as at:
        for name, value in environment(at, OTEL_METRIC_EXPORT_INTERVAL="100").items():
            monkeypatch.setenv(name, value)
        metrics = server_metrics()
        sender = MetricsSender(metrics)
        running = asyncio.create_task(sender.run())
        await asyncio.to_thread(at.wait, lambda: at.requests >= 2, "two times")
        running.cancel()
        metrics.families()
        metrics.response(200)
        await asyncio.to_thread(sender.finish())

    (point,) = at.metrics["Requests2XX"].sum.data_points
    assert point.as_double == 1.0
