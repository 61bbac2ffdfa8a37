import logging
import re

import pytest

from modelserver_handlers.metrics import cache as emissions
from modelserver_handlers.metrics.cache import (
    CachingMetric,
    Dimension,
    Emission,
    MetricsCache,
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCacheTypeError,
    MetricsCacheYamlImpl,
    MetricTypes,
    Units,
)
from modelserver_handlers.metrics.metric import MetricsStore
from modelserver_handlers.metrics.yaml_errors import MetricsCachePyYamlError

GAUGE = MetricTypes.GAUGE


def test_outside_of_workers_values_are_logged(caplog, monkeypatch):
    monkeypatch.setattr(emissions, "_sink", emissions.log_emission)
    caplog.set_level(logging.INFO)
    MetricsCache("m").add_time("t", 1.5, dimensions=[Dimension("a", "b")])

    (record,) = caplog.records
    start = "[METRICS]t.Milliseconds:1.5|#a:b,ModelName:m,Level:Model|#type:GAUGE|#hostname:"
    assert record.getMessage().startswith(start)


@pytest.mark.parametrize("measures", [MetricsCache("m"), MetricsStore({}, "m")], ids=["cache", "store"])
def test_unknown_units_are_refused(measures):
    with pytest.raises(ValueError, match=r"^the unit for a timed metric should be one of \['ms', 's'\]$"):
        measures.add_time("t", 1, unit="h")
    with pytest.raises(
        ValueError, match=r"^The unit for size based metric is one of \['MB','kB', 'GB', 'B'\]$"
    ):
        measures.add_size("s", 1, unit="h")


def test_units_have_torchserves_long_names():
    assert (Units().units["ms"], Units.units[""], Units.units[None]) == ("Milliseconds", "unit", "unit")


def test_declared_metrics_have_only_their_own_dimensions(cache, seen):
    metric = cache.add_metric_to_cache("size", "MB", ["shape"], GAUGE)
    assert (metric.unit, metric.dimension_names, seen) == ("Megabytes", ["shape"], [])

    metric.add_or_update(3, ["square"], "id-0")
    assert seen == [Emission("size", 3, "MB", "gauge", (("shape", "square"),), "id-0")]


@pytest.mark.parametrize(
    ("value", "values", "message"),
    [
        (1, ["x"], r"Dimension values: \['x'\] should correspond to Dimension names: \['a', 'b'\]"),
        (1, None, "Dimension values: None should correspond"),
        (-1, ["x", "y"], "Counter metric update value cannot be negative"),
    ],
)
def test_wrong_values_are_logged(seen, caplog, value, values, message):
    """A value that cannot be reported fails no request: it is an error in the log."""
    CachingMetric("n", "count", ["a", "b"]).add_or_update(value, values)

    assert seen == []
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.records[0].getMessage().startswith("[METRICS]Failed to update metric with name:n")
    assert re.search(message, caplog.text)


def test_update_replaces_the_declared_names(seen, caplog):
    metric = CachingMetric("n", "ms", ["a"], GAUGE)
    metric.update(4, "id", [Dimension("q", "r")])

    assert seen == [Emission("n", 4, "ms", "gauge", (("q", "r"),), "id")]
    assert "Overriding existing dimensions" in caplog.text


def test_negative_counters_are_not_reported(cache, seen, caplog):
    cache.add_counter("n", -1)
    cache.add_counter("n", 0)

    assert [emission.value for emission in seen] == [0]
    assert "below 0" in caplog.text


def test_get_metric_finds_what_was_declared_or_added(cache):
    first = cache.add_metric_to_cache("n", "count")
    assert cache.get_metric("n") is first
    second = cache.add_metric_to_cache("n", "count", ["a"])
    assert cache.get_metric("n", MetricTypes.COUNTER) is second

    cache.add_time("t", 1, dimensions=[Dimension("a", "b")])
    assert cache.get_metric("t", GAUGE).dimension_names == ["a", "ModelName", "Level"]
    assert cache.cache_keys() == [MetricTypes.COUNTER, GAUGE]


def test_unknown_metrics_raise(cache):
    with pytest.raises(MetricsCacheKeyError, match=r"MetricTypes\.COUNTER' and name 'n' doesn't exist"):
        cache.get_metric("n")
    with pytest.raises(MetricsCacheTypeError, match="must be a MetricTypes enum"):
        cache.get_metric("n", "counter")


@pytest.mark.parametrize(
    "arguments", [(5, "count"), ("n", 5), ("n", "count", [1]), ("n", "count", ["a"], "counter")]
)
def test_declarations_are_checked(cache, arguments):
    with pytest.raises(MetricsCacheTypeError):
        cache.add_metric_to_cache(*arguments)


def test_one_name_may_have_several_dimensions(cache, seen):
    """Better than TorchServe, which drops all but the first set."""
    cache.add_counter("n", 1, None, [Dimension("a", "b")])
    cache.add_counter("n", 1, 0)

    assert [len(emission.dimensions) for emission in seen] == [3, 2]
    assert [emission.request_id for emission in seen] == ["id-0,id-1", "id-0"]


def test_other_metrics_take_any_unit(cache, seen):
    cache.add_metric("n", 1, "min")
    declared = cache.add_metric_to_cache("d", "min")
    declared.add_or_update(1, [])

    assert [emission.unit for emission in seen] == ["min", "min"]
    with pytest.raises(MetricsCacheTypeError):
        cache.add_metric_to_cache("d", 5)


YAML = """
model_metrics:
  gauge:
    - {name: HandlerTime, unit: ms, dimensions: [ModelName, Level]}
  histogram:
    - {name: H, unit: s, dimensions: []}
"""


def test_metrics_are_declared_by_a_file(tmp_path):
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
        (None, MetricsCacheIOError),
    ],
)
def test_wrong_and_missing_files_raise(tmp_path, text, error):
    path = tmp_path / "metrics.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error):
        MetricsCacheYamlImpl(str(path)).initialize_cache()
    with pytest.raises(MetricsCacheTypeError):
        MetricsCacheYamlImpl(None)
