import enum
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from modelserver.engine.wire.frames import FrameReader, encode, to_server_decoder
from modelserver.engine.wire.messages import Measurement, Result
from modelserver_handlers.metrics.collected import HandlerMetrics

DEFAULTS = [("ModelName", "m"), ("Level", "Model")]


class MetricTypes(enum.Enum):
    GAUGE = "gauge"


KINDS = (MetricTypes.GAUGE, "gauge", "GAUGE")


@pytest.fixture
def metrics():
    made = HandlerMetrics("m")
    made.request_ids = {0: "id-0", 1: "id-1"}
    return made


def one(metrics):
    collected = metrics.collect()
    (measurement,) = collected
    return measurement


def dimension(name, value):
    return SimpleNamespace(name=name, value=value)


@pytest.mark.parametrize(
    ("method", "arguments", "unit", "kind"),
    [
        ("add_metric", ("name", 3, "images"), "images", "counter"),
        ("add_counter", ("name", 3), "Count", "counter"),
        ("add_time", ("name", 3), "Milliseconds", "gauge"),
        ("add_size", ("name", 3), "Megabytes", "gauge"),
        ("add_percent", ("name", 3), "Percent", "gauge"),
        ("add_time", ("name", 3, None, "s"), "Seconds", "gauge"),
        ("add_size", ("name", 3, None, "B"), "Bytes", "gauge"),
        ("add_time", ("HandlerTime", 3), "ms", "gauge"),
        ("add_time", ("PredictionTime", 3), "ms", "gauge"),
        *(
            ("add_metric", ("name", 3, "x", None, (), k), "x", "gauge")
            for k in (MetricTypes.GAUGE, "gauge", "GAUGE")
        ),
    ],
)
def test_each_kind_has_its_defaults(metrics, method, arguments, unit, kind):
    """Units, in long names, kinds and default dimensions are those of TorchServe (reference 13.6). Those that
    its own metrics.yaml lists have the unit that it says (reference 15.3).
    """
    getattr(metrics, method)(*arguments)
    assert one(metrics) == Measurement(arguments[0], 3.0, unit, kind, DEFAULTS, "id-0,id-1")


def test_dimensions_replace_defaults_and_errors_have_their_level(metrics):
    metrics.add_counter("n", 1, dimensions=[dimension("Level", "Mine"), dimension("Size", 3)])

    assert one(metrics).dimensions == [("Level", "Mine"), ("Size", "3"), ("ModelName", "m")]

    metrics.add_error("failures", 1)

    measurement = one(metrics)
    assert measurement.kind == "counter"
    assert measurement.dimensions == [("ModelName", "m"), ("Level", "Error")]


@pytest.mark.parametrize(("idx", "request_id"), [(None, "id-0,id-1"), (0, "id-0"), (1, "id-1"), (7, "")])
def test_position_names_the_request(metrics, idx, request_id):
    metrics.add_counter("n", 1, idx)
    assert one(metrics).request_id == request_id


def test_collecting_empties(metrics):
    metrics.add_counter("a", 1)
    metrics.add_counter("b", 1)

    collected = metrics.collect()

    assert collected is not None
    assert [m.name for m in collected] == ["a", "b"]
    assert metrics.collect() is None


def test_whatever_a_handler_passes_can_be_sent(metrics):
    metrics.add_metric(5, True, None, dimensions=[dimension(1, None)])
    metrics.add_counter("\ud800", 2, dimensions=[dimension("\udcff", "ü")])
    stream = b"".join(encode(Result(1, [], 0.0, metrics=metrics.collect())))

    ((result, _),) = FrameReader(to_server_decoder).feed(stream)

    assert isinstance(result, Result)
    first, second = result.metrics
    assert (first.name, first.value, first.unit, first.dimensions[0]) == ("5", 1.0, "unit", ("1", "None"))
    assert (second.name, second.dimensions[0]) == ("?", ("?", "ü"))


def test_each_thread_tags_with_the_batch_it_began_or_the_latest():
    metrics = HandlerMetrics("m")
    metrics.request_ids = {0: "running"}

    def prepare():
        metrics.request_ids = {0: "next"}
        metrics.add_counter("prepared", 1)

    for work in (prepare, partial(metrics.add_counter, "counted", 1)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    metrics.add_counter("computed", 1)

    assert {m.name: m.request_id for m in metrics.collect() or ()} == {
        "prepared": "next",
        "counted": "next",
        "computed": "running",
    }
