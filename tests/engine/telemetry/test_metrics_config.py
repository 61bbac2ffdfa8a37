import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.metrics_config import MetricSpec, load_metrics_config, parse_metrics_config
from modelserver.errors import ConfigError

# In the form of TorchServe's own file.
CONFIG = """
dimensions:
  - &model_name "ModelName"
  - &level "Level"
ts_metrics:
  counter:
    - name: Requests2XX
      unit: Count
      dimensions: [*level, "Host_Name"]
    - name: OnlyListed
      unit: Count
      dimensions: [*level]
  gauge:
    - name: QueueTime
      unit: Seconds
      dimensions: [*level, "Hostname", "Extra"]
  histogram:
model_metrics:
  counter:
    - {name: Words, unit: count, dimensions: [*model_name, *level]}
  histogram:
    - {name: Length, unit: chars, dimensions: [*model_name, *level]}
"""
DIMENSIONS = [("ModelName", "m"), ("Level", "Model")]


def rendered(metrics):
    return b"".join(metrics.pieces()).decode().splitlines()


def made(**options):
    return ServerMetrics(hostname="h", config=parse_metrics_config(CONFIG), **options)


def test_items_are_read():
    config = parse_metrics_config(CONFIG)

    assert list(config.server) == ["Requests2XX", "OnlyListed", "QueueTime"]
    assert config.model["Words"] == MetricSpec(
        "Words", "counter", "count", ("ModelName", "Level", "Hostname")
    )
    assert parse_metrics_config("") == parse_metrics_config("dimensions: [a]\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "the file: a mapping is needed"),
        ("a: [", "expected"),
        ("ts_metrics: 3", "ts_metrics: a mapping is needed"),
        ("ts_metrics: {timer: []}", "ts_metrics.timer: one of counter, gauge, histogram"),
        ("ts_metrics: {gauge: 1}", "ts_metrics.gauge: a list is needed"),
        ("ts_metrics: {gauge: [x]}", r"ts_metrics.gauge\[0\]: a mapping is needed"),
        ("ts_metrics: {gauge: [{name: a}]}", r"gauge\[0\].unit: text is needed"),
        ("ts_metrics: {gauge: [{name: '', unit: ms}]}", r"gauge\[0\].name: text is needed"),
        ("ts_metrics: {gauge: [{name: 'a b', unit: ms}]}", "not a metric name: 'a b'"),
        ("ts_metrics: {gauge: [{name: a, unit: ms, dimensions: [a-b]}]}", "not a label name: 'a-b'"),
        ("ts_metrics: {gauge: [{name: a, unit: ms, dimensions: [3]}]}", "dimensions: text is needed"),
        ("model_metrics: {gauge: [{name: a, unit: s}, {name: a, unit: s}]}", "a is listed twice"),
        ("a: !!python/object/apply:os.system [ls]", "python/object"),
        # The usual way to name a dimension that the file does not have.
        ("a: [&level Level]\nts_metrics: {gauge: [{dimensions: [*host]}]}", "alias 'host'.*line 2"),
    ],
)
def test_what_cannot_be_understood(text, problem):
    """The place and what is needed there are named, and tags make no objects (F60)."""
    with pytest.raises(ConfigError, match=problem):
        parse_metrics_config(text)


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("unit: Count", "unit: ''", 8),
        ('"Host_Name"', "[1]", 9),
        ("name: OnlyListed", "nome: OnlyListed", 10),
        ("histogram:", "timer:", 17),
        ("model_metrics:", "model_metrics: 3 #", 18),
        ("name: Words", "name: 3", 20),
    ],
)
def test_mistakes_are_reported_with_their_line(right, wrong, line):
    text = CONFIG.partition("model_metrics:")[0] if right == "model_metrics:" else CONFIG
    text = text + wrong if right == "model_metrics:" else text.replace(right, wrong, 1)
    with pytest.raises(ConfigError, match=rf"^line {line}: "):
        parse_metrics_config(text)


def test_unreadable_files_are_refused(tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"\xff")
    for name, problem in (("none.yaml", "No such file"), ("bad.yaml", "not UTF-8")):
        with pytest.raises(ConfigError, match=f"metrics_config=.*{name}: .*{problem}"):
            load_metrics_config(tmp_path / name)
    (tmp_path / "good.yaml").write_text(CONFIG)

    assert load_metrics_config(tmp_path / "good.yaml") == parse_metrics_config(CONFIG)


def test_list_decides_what_is_rendered_and_how():
    text = "\n".join(rendered(made()))

    assert "Requests2XX" in text
    assert "Requests4XX" not in text
    assert "ts_inference_requests_total" not in text
    assert "PredictionTime" not in text
    assert "modelserver_batch_size" in text

    metrics = made()
    metrics.response(200)
    metrics.response(404)
    lines = rendered(metrics)

    assert 'Requests2XX{Level="Host",Host_Name="h"} 1.0' in lines
    assert "# HELP QueueTime Torchserve prometheus gauge metric with unit: Milliseconds" in lines
    assert "# TYPE OnlyListed counter" in lines
    assert not any(line.startswith("OnlyListed") for line in lines)


def test_metrics_of_handlers_follow_the_config():
    for detect in (False, True):
        metrics = made(auto_detect=detect)
        model = metrics.model("m", "1.0")
        model.handler_metric("Words", 3, "ms", "gauge", [("a", "m"), ("b", "Model")])
        model.handler_metric("Words", 4, "ms", "gauge", [("a", "m"), ("b", "Model")])
        model.handler_metric("Length", 7, "chars", "HISTOGRAM", DIMENSIONS)
        model.handler_metric("Other", 1, "ms", "GAUGE", DIMENSIONS)
        lines = rendered(metrics)

        assert 'Words{ModelName="m",Level="Model",Hostname="h"} 7.0' in lines
        assert "# HELP Words Torchserve prometheus counter metric with unit: count" in lines
        assert 'Length_sum{ModelName="m",Level="Model",Hostname="h"} 7.0' in lines
        assert any(line.startswith("Other{") for line in lines) is detect


def test_listed_metric_outlives_its_model_and_needs_all_dimensions(caplog):
    metrics = made()
    model = metrics.model("m", "1.0")
    model.handler_metric("Words", 3, "count", "counter", DIMENSIONS)
    metrics.forget("m", "1.0")

    assert "# TYPE Words counter" in rendered(metrics)
    assert not any(line.startswith("Words") for line in rendered(metrics))

    metrics = made()
    model = metrics.model("m", "1.0")
    for number in range(3):
        model.handler_metric("Words", 3, "count", "counter", [("ModelName", f"m{number}")])

    assert not any(line.startswith("Words") for line in rendered(metrics))
    assert caplog.text.count("The handler metric Words has 1 dimensions, metrics_config lists 2") == 1


def test_log_mode_logs_what_is_listed(caplog):
    """In log mode too the list decides what there is, and under which unit (reference 15.5)."""
    caplog.set_level("INFO")
    metrics = made(mode="log")
    metrics.response(200)
    metrics.response(404)
    model = metrics.model("m", "1.0")
    model.handler_metric("Words", 3, "x", "counter", DIMENSIONS, "id")
    model.handler_metric("Other", 3, "x", "counter", DIMENSIONS, "id")
    model.batches.finished(1, 1, 1, "idle", 0.5, (0.0, 0.0, 0.0))
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("modelserver.m")]

    assert [line.partition("|#")[0] for line in lines] == ["Requests2XX.Count:1.0", "Words.count:3.0"]
    assert b"".join(metrics.pieces()) == b""


def test_log_mode_logs_the_times_of_each_batch(caplog):
    """PredictionTime and HandlerTime have a line for each batch (reference 12.5)."""
    caplog.set_level("INFO")
    model = ServerMetrics(hostname="h", mode="legacy").model("m", "1.0")
    model.batches.finished(1, 1, 1, "idle", 0.5, (0.125, 0.125, 0.0))
    lines = [r.getMessage() for r in caplog.records if r.name == "modelserver.model_metrics"]

    assert [line.partition(",requestID")[0] for line in lines] == [
        "PredictionTime.ms:500.0|#ModelName:m,Level:Model|#hostname:h",
        "HandlerTime.ms:250.0|#ModelName:m,Level:Model|#hostname:h",
    ]
