import re

from modelserver.engine.telemetry import metric_log


def test_updates_are_lines(caplog):
    caplog.set_level("INFO", metric_log.SERVER_METRICS_LOGGER)
    counter = metric_log.LoggedCounter("Requests2XX", "help", ["Level", "Hostname"], unit="Count")
    gauge = metric_log.LoggedGauge("CPUUtilization", "help", ["Level", "Hostname"], unit="Percent")
    counter.labels("Host", "h").add(2)
    counter.labels("Host", "h").add()
    gauge.labels("Host", "h").set(12.5)

    assert counter.labels("Host", "h").value == 3
    assert [re.sub(r"\d{9,}$", "T", line) for line in caplog.messages] == [
        "Requests2XX.Count:2.0|#Level:Host|#hostname:h,timestamp:T",
        "Requests2XX.Count:1.0|#Level:Host|#hostname:h,timestamp:T",
        "CPUUtilization.Percent:12.5|#Level:Host|#hostname:h,timestamp:T",
    ]


def test_a_handlers_metric_names_its_request(caplog):
    caplog.set_level("INFO", metric_log.MODEL_METRICS_LOGGER)
    dimensions = [("ModelName", "m"), ("Level", "Model")]
    metric_log.log_model_metric("Words", 3.0, "Count", dimensions, hostname="h", request_id="r")

    (line,) = caplog.messages
    assert re.fullmatch(
        r"Words\.Count:3\.0\|#ModelName:m,Level:Model\|#hostname:h,requestID:r,timestamp:\d+", line
    )
