import math

import pytest

from modelserver.engine.telemetry.handler_metrics import (
    MAX_NAMES_PER_MODEL,
    MAX_SERIES_PER_MODEL,
    HandlerFamilies,
    ModelHandlerMetrics,
)
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.prometheus import Counter, MetricRegistry

DIMENSIONS = [("ModelName", "m"), ("Level", "Model")]


@pytest.fixture
def registry():
    return MetricRegistry()


@pytest.fixture
def families(registry):
    return HandlerFamilies(registry)


@pytest.fixture
def metrics(families):
    return ModelHandlerMetrics(families, "m", "h")


def samples(registry):
    return [line for line in b"".join(registry.pieces()).decode().splitlines() if not line.startswith("#")]


def test_known_metrics_are_recorded(registry, metrics):
    metrics.record("PredictionTime", 83.13, "ms", "GAUGE", DIMENSIONS)
    text = b"".join(registry.pieces(["PredictionTime"])).decode().splitlines()

    assert text == [
        "# HELP PredictionTime Torchserve prometheus gauge metric with unit: ms",
        "# TYPE PredictionTime gauge",
        'PredictionTime{ModelName="m",Level="Model",Hostname="h"} 83.13',
    ]


def test_each_kind_is_recorded(registry, metrics):
    for value in (1, 2):
        metrics.record("c", value, "count", "counter", DIMENSIONS)
        metrics.record("g", value, "ms", "gauge", DIMENSIONS)
        metrics.record("h", value, "ms", "histogram", DIMENSIONS)
    labels = '{ModelName="m",Level="Model",Hostname="h"}'

    assert {f"c{labels} 3.0", f"g{labels} 2.0", f"h_count{labels} 2.0", f"h_sum{labels} 3.0"} <= set(
        samples(registry)
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_negative_and_infinite_values_are_ignored(registry, metrics, value):
    metrics.record("c", 1, "count", "counter", DIMENSIONS)
    metrics.record("c", value, "count", "counter", DIMENSIONS)

    assert samples(registry)[0].endswith(" 1.0")


def test_names_and_series_are_bounded(registry, families, metrics, caplog):
    """At most 200 metric names of a model besides the known ones, and 1000 series; one warning each (F69)."""
    for number in range(MAX_NAMES_PER_MODEL + 50):
        metrics.record(f"metric_{number}", 1, "count", "counter", DIMENSIONS)
    metrics.record("HandlerTime", 1, "ms", "gauge", DIMENSIONS)

    assert len(samples(registry)) == MAX_NAMES_PER_MODEL + 1
    assert caplog.text.count("more than 200 names") == 1

    other = ModelHandlerMetrics(families, "other", "h")
    for number in range(MAX_SERIES_PER_MODEL + 100):
        other.record("c", 1, "count", "counter", [("RequestId", str(number))])

    assert len(samples(registry)) == MAX_SERIES_PER_MODEL + MAX_NAMES_PER_MODEL + 1
    assert caplog.text.count("more than 1000 series") == 1


@pytest.mark.parametrize("name", ["modelserver_queue_requests", "Requests2XX"])
def test_the_servers_own_names_are_safe(registry, families, name, caplog):
    registry.add(Counter("Requests2XX", "R."))
    ModelHandlerMetrics(families, "m", "h").record(name, 5, "count", "counter", DIMENSIONS)

    assert samples(registry) == []
    assert "is already used" in caplog.text


def test_conflicting_kind_is_dropped_with_one_warning(registry, metrics, caplog):
    metrics.record("x", 1, "count", "counter", DIMENSIONS)
    for _ in range(3):
        metrics.record("x", 2, "ms", "gauge", DIMENSIONS)
        metrics.record("y", 2, "ms", "summary", DIMENSIONS)

    assert len(samples(registry)) == 1
    assert len(caplog.records) == 2


def test_first_emission_decides_the_labels_which_become_acceptable(registry, metrics):
    metrics.record("x", 1, "count", "counter", [("A", "1")])
    metrics.record("x", 2, "count", "counter", [("B", "2")])

    assert samples(registry) == ['x{A="1",Hostname="h"} 1.0', 'x{A="",Hostname="h"} 2.0']

    metrics.record("my time", 1, "ms", "gauge", [("a b", "v" * 1000)])

    assert samples(registry)[2:] == [f'my_time{{a_b="{"v" * 256}",Hostname="h"}} 1.0']


def test_close_forgets_the_models_series(registry, families):
    first, second = ModelHandlerMetrics(families, "a", "h"), ModelHandlerMetrics(families, "b", "h")
    for metrics, model in ((first, "a"), (second, "b")):
        metrics.record("shared", 1, "count", "counter", [("ModelName", model)])
        metrics.record(f"only_{model}", 1, "count", "counter", [("ModelName", model)])
    first.close()

    labels = '{ModelName="b",Hostname="h"}'
    assert samples(registry) == [f"shared{labels} 1.0", f"only_b{labels} 1.0"]
    assert "only_a" not in registry
    assert "PredictionTime" in registry


# Handlers' metrics that no ``metrics_config`` lists, in both sets of defaults (reference 15.4)


def names_after(metrics):
    """Which of three handlers' metrics there are after each was emitted."""
    model = metrics.model("m", "1.0")
    for name in ("HandlerTime", "PredictionTime", "Words"):
        model.handler_metric(name, 5.0, "ms", "gauge", DIMENSIONS)
    text = b"".join(metrics.pieces()).decode()
    return {name for name in ("HandlerTime", "PredictionTime", "Words") if f'\n{name}{{ModelName="m"' in text}


@pytest.mark.parametrize(
    ("known_only", "auto_detect", "words"),
    [(False, False, True), (True, False, False), (True, True, True)],
    ids=["ours", "TorchServe's", "TorchServe's with model_metrics_auto_detect"],
)
def test_metrics_beyond_torchserves_list_are_reported_on_request(known_only, auto_detect, words):
    """Ours are all kept; TorchServe's are those of its own list, and others where they are to be detected."""
    result = names_after(ServerMetrics(as_torchserve=known_only, auto_detect=auto_detect))
    assert result == {"HandlerTime", "PredictionTime"} | ({"Words"} if words else set())


@pytest.mark.parametrize("known_only", [False, True])
def test_metrics_beyond_the_list_are_logged_on_request(known_only, caplog):
    caplog.set_level("INFO", logger="modelserver.model_metrics")
    names_after(ServerMetrics(mode="log", as_torchserve=known_only))
    names = [record.getMessage().partition(".")[0] for record in caplog.records]

    assert names == ["HandlerTime", "PredictionTime", *([] if known_only else ["Words"])]
