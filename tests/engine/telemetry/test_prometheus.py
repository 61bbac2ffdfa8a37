from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.telemetry import prometheus


def rendered(registry, *names):
    return b"".join(registry.pieces(names)).decode().splitlines()


def test_counter_keeps_its_exact_name_and_is_announced():
    registry = prometheus.MetricRegistry()
    counter = registry.add(prometheus.Counter("Requests2XX", "Answers.", ("Level", "Hostname")))
    announced = ["# HELP Requests2XX Answers.", "# TYPE Requests2XX counter"]

    assert rendered(registry) == announced
    assert rendered(registry, "Requests2XX") == []
    counter.labels("Host", "h").add(8)
    assert rendered(registry) == [*announced, 'Requests2XX{Level="Host",Hostname="h"} 8.0']


def test_trailing_comma_closes_labels():
    registry = prometheus.MetricRegistry(trailing_comma=True)
    registry.add(prometheus.Gauge("a", "A.", ("x",))).labels("1").set(2)
    registry.add(prometheus.Gauge("b", "B.")).labels().set(3)

    assert rendered(registry)[2::3] == ['a{x="1",} 2.0', "b 3.0"]


def test_histogram_buckets_are_cumulative_and_inclusive():
    registry = prometheus.MetricRegistry()
    histogram = registry.add(prometheus.Histogram("size", "Sizes.", ("m",), bounds=(1, 2.5)))
    child = histogram.labels("r")
    for value in (1, 2, 2.5, 9):
        child.observe(value)

    assert rendered(registry)[2:] == [
        'size_bucket{m="r",le="1.0"} 1.0',
        'size_bucket{m="r",le="2.5"} 3.0',
        'size_bucket{m="r",le="+Inf"} 4.0',
        'size_count{m="r"} 4.0',
        'size_sum{m="r"} 14.5',
    ]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5, 2.5, 3.0, inf]))))
def test_observations_may_be_counted_together(values):
    one, together = (prometheus.Distribution((0.0, 1.0, 2.5)) for _ in range(2))
    for later, value in values:
        one.observe(value)
        (together.new.append if later else together.observe)(value)

    assert (together.counts, together.new) == (one.counts, [])
    assert together.total == pytest.approx(one.total)
    assert together.counts == one.counts


def many_series():
    registry = prometheus.MetricRegistry()
    histogram = registry.add(prometheus.Histogram("size", "Sizes.", ("m",)))
    counter = registry.add(prometheus.Counter("calls", "Calls.", ("m",)))
    for number in range(300):
        histogram.labels(str(number)).observe(number)
        counter.labels(str(number)).add(number)
    return registry, histogram, counter


def test_pieces_are_small_and_make_the_text():
    registry, histogram, _ = many_series()
    pieces = list(registry.pieces())
    lines = [piece.count(b"\n") for piece in pieces]

    assert b"".join(pieces) == b"".join(registry.pieces())
    assert len(pieces) > 4
    assert max(lines) < prometheus.PIECE + len(histogram.bounds) + 3
    assert min(lines[:-1]) >= prometheus.PIECE
    assert len(list(registry.pieces(["calls"]))) == 1
    assert list(registry.pieces(["other"])) == []


def test_metrics_may_change_between_pieces():
    registry, histogram, counter = many_series()
    changes = registry.pieces()
    text = next(changes)
    for number in range(300):
        histogram.remove(str(number))
        histogram.labels(f"new {number}").observe(1)
        counter.labels(str(number)).add(1000)
    registry.remove("calls")
    registry.add(prometheus.Gauge("late", "Late.")).labels().set(1)
    lines = (text + b"".join(changes)).decode().splitlines()

    assert len(set(lines)) == len(lines)
    assert "late" not in "".join(lines)
    assert 'size_count{m="299"} 1.0' in lines
    assert 'calls{m="0"} 1000.0' in lines


def test_a_name_selects_series():
    registry = prometheus.MetricRegistry()
    registry.add(prometheus.Counter("c", "C.")).labels().add()
    registry.add(prometheus.Histogram("h", "H.", bounds=(1,))).labels().observe(1)

    assert rendered(registry, "c")[2:] == ["c 1.0"]
    assert rendered(registry, "h_sum")[2:] == ["h_sum 1.0"]
    assert len(rendered(registry, "h")) == 6
    assert rendered(registry, "nothing") == []


def test_label_values_are_escaped():
    """Quotes, backslashes and line breaks in a label or help text cannot leave it (F13)."""
    registry = prometheus.MetricRegistry()
    registry.add(prometheus.Gauge("g", "a\\b\nc", ("x",))).labels('"\n\\}').set(1)

    assert rendered(registry) == ["# HELP g a\\\\b\\nc", "# TYPE g gauge", 'g{x="\\"\\n\\\\}"} 1.0']

    registry = prometheus.MetricRegistry()
    registry.add(prometheus.Gauge("g", "G.", ("x",))).labels("\ud800").set(1)

    assert rendered(registry)[-1] == 'g{x="?"} 1.0'


def test_series_are_bounded_and_stay():
    """Beyond the limit children work but are neither kept nor shown (F69)."""
    counter = prometheus.Counter("c", "C.", ("x",))
    counter.max_series = 10
    for number in range(10_000):
        counter.labels(str(number)).add()

    assert counter.series_count == 10
    assert len(list(counter.samples())) == 10

    counter = prometheus.Counter("c", "C.", ("x",))
    first = counter.labels("1")

    assert counter.labels("1") is first
    counter.remove("1")
    counter.remove("never there")
    assert counter.labels("1") is not first


@pytest.mark.parametrize(
    ("name", "labels"),
    [("a b", ()), ("1a", ()), ("", ()), ("a", ("x-y",)), ("a", ("__x",)), ("a", ("x", "x"))],
)
def test_bad_names_are_refused(name, labels):
    with pytest.raises(ValueError, match="name"):
        prometheus.Counter(name, "help", labels)


def test_bad_labels_and_bounds_are_refused():
    with pytest.raises(ValueError, match="got 1 values"):
        prometheus.Counter("c", "C.", ("x", "y")).labels("1")
    with pytest.raises(ValueError, match="le"):
        prometheus.Histogram("h", "H.", ("le",))
    for bounds in ((2, 1), (1, 1)):
        with pytest.raises(ValueError, match="increase"):
            prometheus.Histogram("h", "H.", bounds=bounds)


def test_sample_names_cannot_collide():
    registry = prometheus.MetricRegistry()
    registry.add(prometheus.Histogram("h", "H."))
    with pytest.raises(ValueError, match="taken by h"):
        registry.add(prometheus.Gauge("h_sum", "G."))
    registry.remove("h")
    registry.remove("h")

    assert "h_sum" not in registry
    registry.add(prometheus.Gauge("h_sum", "G."))
    assert "h_sum" in registry


@pytest.mark.parametrize(
    ("value", "text"),
    {8: "8.0", 0.1: "0.1", 1e16: "1.0e+16", 1.5e-7: "1.5e-07", inf: "+Inf", -inf: "-Inf", nan: "NaN"}.items(),
)
def test_values_have_a_decimal_point(value, text):
    """Values read as floats everywhere, as dashboards made for TorchServe expect."""
    assert prometheus.format_value(value) == text


def test_names_are_made_acceptable():
    assert prometheus.metric_name("Inference Time-1") == "Inference_Time_1"
    assert prometheus.metric_name("1st") == "_1st"
    assert prometheus.label_name("__a:b") == "_a_b"
    assert prometheus.label_name("") == "_"
