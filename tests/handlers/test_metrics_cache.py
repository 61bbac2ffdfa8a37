"""Metrics that handlers declare, and those that they only add (reference 13.6)."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from modelserver_handlers.metrics import emission as emissions
from modelserver_handlers.metrics.cache import MetricsCache, MetricsCacheYamlImpl
from modelserver_handlers.metrics.caching import CachingMetric
from modelserver_handlers.metrics.emission import Emission
from modelserver_handlers.metrics.errors import (
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCachePyYamlError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from modelserver_handlers.metrics.metric import Metric, MetricEncoder, MetricsStore, emit_metrics
from modelserver_handlers.metrics.process import check_process_mem_usage, get_cpu_usage
from modelserver_handlers.metrics.values import Dimension, MetricTypes, Units

GAUGE = MetricTypes.GAUGE


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Emission]:
    """What is emitted by metrics of no cache."""
    found: list[Emission] = []
    monkeypatch.setattr(emissions, "_sink", found.append)
    return found


@pytest.fixture
def cache(seen: list[Emission]) -> MetricsCache:
    """The cache of a model named ``m``, with two requests in its batch."""
    made = MetricsCache("m")
    made.set_request_ids({0: "id-0", 1: "id-1"})
    return made


def test_declared_metrics_have_only_their_own_dimensions(cache: MetricsCache, seen: list[Emission]) -> None:
    """Nothing is reported when a metric is declared; a value has the declared names, and no others."""
    metric = cache.add_metric_to_cache("size", "MB", ["shape"], GAUGE)
    assert (metric.unit, metric.dimension_names, seen) == ("Megabytes", ["shape"], [])

    metric.add_or_update(3, ["square"], "id-0")
    assert seen == [Emission("size", 3, "MB", "gauge", (("shape", "square"),), "id-0")]


def test_get_metric_finds_what_was_declared_or_added(cache: MetricsCache) -> None:
    """By name and type; a second declaration takes the place of the first."""
    first = cache.add_metric_to_cache("n", "count")
    assert cache.get_metric("n") is first
    second = cache.add_metric_to_cache("n", "count", ["a"])
    assert cache.get_metric("n", MetricTypes.COUNTER) is second

    cache.add_time("t", 1, dimensions=[Dimension("a", "b")])
    assert cache.get_metric("t", GAUGE).dimension_names == ["a", "ModelName", "Level"]
    assert cache.cache_keys() == [MetricTypes.COUNTER, GAUGE]


def test_get_metric_without_one(cache: MetricsCache) -> None:
    """A metric that is not there is a KeyError, a type that is none a TypeError, both by their own names."""
    with pytest.raises(MetricsCacheKeyError, match=r"MetricTypes\.COUNTER' and name 'n' doesn't exist"):
        cache.get_metric("n")
    with pytest.raises(MetricsCacheTypeError, match="must be a MetricTypes enum"):
        cache.get_metric("n", "counter")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [(5, "count"), ("n", 5), ("n", "count", [1]), ("n", "count", ["a"], "counter")]
)
def test_declarations_are_checked(cache: MetricsCache, arguments: tuple[Any, ...]) -> None:
    """Names are text, the type is one of MetricTypes."""
    with pytest.raises(MetricsCacheTypeError):
        cache.add_metric_to_cache(*arguments)


@pytest.mark.parametrize(
    ("value", "values", "message"),
    [
        (1, ["x"], r"Dimension values: \['x'\] should correspond to Dimension names: \['a', 'b'\]"),
        (1, None, "Dimension values: None should correspond"),
        (-1, ["x", "y"], "Counter metric update value cannot be negative"),
    ],
)
def test_wrong_values_are_logged(
    seen: list[Emission], caplog: pytest.LogCaptureFixture, value: int, values: Any, message: str
) -> None:
    """A value that cannot be reported fails no request: it is an error in the log."""
    CachingMetric("n", "count", ["a", "b"]).add_or_update(value, values)

    assert seen == []
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.records[0].getMessage().startswith("[METRICS]Failed to update metric with name:n")
    assert re.search(message, caplog.text)


def test_update_replaces_the_declared_names(seen: list[Emission], caplog: pytest.LogCaptureFixture) -> None:
    """The way of old: Dimension objects override the names, with a warning."""
    metric = CachingMetric("n", "ms", ["a"], GAUGE)
    metric.update(4, "id", [Dimension("q", "r")])

    assert seen == [Emission("n", 4, "ms", "gauge", (("q", "r"),), "id")]
    assert "Overriding existing dimensions" in caplog.text


def test_negative_counters_are_not_reported(
    cache: MetricsCache, seen: list[Emission], caplog: pytest.LogCaptureFixture
) -> None:
    """A counter never goes down: the attempt is logged."""
    cache.add_counter("n", -1)
    cache.add_counter("n", 0)

    assert [emission.value for emission in seen] == [0]
    assert "below 0" in caplog.text


def test_one_name_may_have_several_dimensions(cache: MetricsCache, seen: list[Emission]) -> None:
    """Better than TorchServe, which drops all but the first set."""
    cache.add_counter("n", 1, None, [Dimension("a", "b")])
    cache.add_counter("n", 1, 0)

    assert [len(emission.dimensions) for emission in seen] == [3, 2]
    assert [emission.request_id for emission in seen] == ["id-0,id-1", "id-0"]


def test_wrong_units_are_value_errors(cache: MetricsCache) -> None:
    """The class is TorchServe's, and a ValueError."""
    with pytest.raises(MetricsCacheValueError):
        cache.add_time("t", 1, unit="min")
    assert issubclass(MetricsCacheValueError, ValueError)


def test_outside_of_workers_values_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the line that TorchServe's workers print."""
    monkeypatch.setattr(emissions, "_sink", emissions.log_emission)
    caplog.set_level(logging.INFO)
    MetricsCache("m").add_time("t", 1.5, dimensions=[Dimension("a", "b")])

    (record,) = caplog.records
    start = "[METRICS]t.Milliseconds:1.5|#a:b,ModelName:m,Level:Model|#type:GAUGE|#hostname:"
    assert record.getMessage().startswith(start)


# From a file

YAML = """
model_metrics:
  gauge:
    - {name: HandlerTime, unit: ms, dimensions: [ModelName, Level]}
  histogram:
    - {name: H, unit: s, dimensions: []}
"""


def test_metrics_of_a_file(tmp_path: Path) -> None:
    """initialize_cache declares what model_metrics lists."""
    path = tmp_path / "metrics.yaml"
    path.write_text(YAML)
    cache = MetricsCacheYamlImpl(str(path))
    assert cache.cache == {}

    cache.initialize_cache()
    assert cache.get_metric("HandlerTime", GAUGE).dimension_names == ["ModelName", "Level"]
    assert cache.get_metric("H", MetricTypes.HISTOGRAM).unit == "Seconds"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ts_metrics: {}", MetricsCacheKeyError),
        ("model_metrics: {timer: [{name: n, unit: s, dimensions: []}]}", MetricsCacheKeyError),
        ("model_metrics: {gauge: [{unit: s, dimensions: []}]}", MetricsCacheKeyError),
        ("a: [", MetricsCachePyYamlError),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, error: type[Exception]) -> None:
    """A file without the section, with another kind, without a name, and none at all."""
    path = tmp_path / "metrics.yaml"
    path.write_text(text)

    with pytest.raises(error):
        MetricsCacheYamlImpl(str(path)).initialize_cache()


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is an OSError, a path that is none a TypeError."""
    with pytest.raises(MetricsCacheIOError, match="Error reading file"):
        MetricsCacheYamlImpl(str(tmp_path / "none.yaml"))
    with pytest.raises(MetricsCacheTypeError):
        MetricsCacheYamlImpl(None)  # type: ignore[arg-type]


# The way of old


def test_metric_objects(seen: list[Emission]) -> None:
    """A metric tells its value as text and as a mapping, and reports updates."""
    metric = Metric("n", 3, "count", [Dimension("a", "b")], "id", "counter")
    assert str(metric).startswith("n.Count:3|#a:b|#hostname:")
    assert str(metric).endswith(",id")

    metric.update(4)
    assert (metric.value, seen[0].value, seen[0].kind) == (7, 4, "counter")
    metric.reset()
    described = metric.to_dict()
    assert {key: described[key] for key in ("MetricName", "Value", "Unit", "RequestId")} == {
        "MetricName": "n",
        "Value": 0,
        "Unit": "Count",
        "RequestId": "id",
    }
    assert '"Dimensions": [{"Name": "a", "Value": "b"}]' in MetricEncoder().encode(metric)
    with pytest.raises(TypeError):
        MetricEncoder().encode(object())


def test_store(seen: list[Emission]) -> None:
    """The store makes one metric per name, unit, request and dimensions, and updates it from then on."""
    store = MetricsStore({0: "id"}, "m")
    store.add_counter("c", 1)
    store.add_counter("c", 2, 0)
    store.add_time("t", 3)
    store.add_size("s", 3)
    store.add_percent("p", 3)
    store.add_error("e", "text")
    store.add_metric("x", 1, "images", dimensions=[Dimension("a", "b")])

    assert [metric.name for metric in store.store] == ["c", "t", "s", "p", "e", "x"]
    assert store.store[0].value == 3
    assert [emission.value for emission in seen] == [2]
    assert [str(dimension) for dimension in store.store[4].dimensions] == ["Level:Error"]
    with pytest.raises(ValueError, match="unit for a timed metric"):
        store.add_time("t", 1, unit="h")
    with pytest.raises(ValueError, match="unit for size based metric"):
        store.add_size("t", 1, unit="h")


def test_stored_metrics_are_found_by_torchserves_keys() -> None:
    """Name, unit, requests and dimensions, joined by hyphens."""
    store = MetricsStore({0: "abcd", 1: "xyz"}, "m")
    store.add_counter("Words", 1, 1)
    store.add_counter("Words", 1)
    store.add_error("Broken", "wrong")

    assert list(store.cache) == [
        "Words-count-xyz-ModelName:m-Level:Model",
        "Words-count-abcd,xyz-ModelName:m-Level:Model",
        "Broken--None-Level:Error",
    ]


def test_emit_metrics(seen: list[Emission]) -> None:
    """Each metric's value is reported once."""
    emit_metrics([Metric("n", 3, "ms", []), Metric("k", 4, None, [])])

    assert [(emission.name, emission.value, emission.unit) for emission in seen] == [
        ("n", 3, "Milliseconds"),
        ("k", 4, "unit"),
    ]


def test_units() -> None:
    """The long names are TorchServe's."""
    assert (Units().units["ms"], Units.units[""], Units.units[None]) == ("Milliseconds", "unit", "unit")


def test_memory_of_processes(caplog: pytest.LogCaptureFixture) -> None:
    """Known processes are logged with their bytes, ended ones are passed over."""
    caplog.set_level(logging.INFO)
    own = str(Path("/proc/self").resolve().name)
    check_process_mem_usage([f"{own}\n", "999999999"])

    (record,) = caplog.records
    pid, _, size = record.getMessage().partition(":")
    assert (pid, int(size) > 1_000_000) == (own, True)
    assert get_cpu_usage(own) >= 0
    assert get_cpu_usage(999999999) == 0
