import pytest

from modelserver_handlers.metrics.cache import Dimension
from modelserver_handlers.metrics.metric import Metric, MetricEncoder, MetricsStore, emit_metrics


def test_a_metric_is_text_and_mapping(seen):
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


def test_the_store_updates_its_metrics(seen):
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


def test_torchserves_keys_lead_to_stored_metrics():
    store = MetricsStore({0: "abcd", 1: "xyz"}, "m")
    store.add_counter("Words", 1, 1)
    store.add_counter("Words", 1)
    store.add_error("Broken", "wrong")

    assert list(store.cache) == [
        "Words-count-xyz-ModelName:m-Level:Model",
        "Words-count-abcd,xyz-ModelName:m-Level:Model",
        "Broken--None-Level:Error",
    ]


def test_each_value_is_reported_once(seen):
    emit_metrics([Metric("n", 3, "ms", []), Metric("k", 4, None, [])])

    units = [(each.name, each.value, each.unit) for each in seen]
    assert units == [("n", 3, "Milliseconds"), ("k", 4, "unit")]
