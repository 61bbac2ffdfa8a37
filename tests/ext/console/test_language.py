from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.console.language import language_figures


def test_figures_are_those_of_the_metrics():
    """Those of OpenAI's API, and of engines: requests of several are added, percents are not."""
    metrics = ServerMetrics()
    labels = ("model_name", "model_version")
    first = metrics.histogram("modelserver_first_token_seconds", "", labels, bounds=(0.1, 1.0))
    first.labels("m", "1.0").observe(0.5)
    metrics.counter("modelserver_completion_tokens_total", "", labels).labels("n", "2").add(7)
    for gpu in ("0", "1"):
        version = [("ModelName", "m"), ("Level", "Model"), ("ModelVersion", "1.0"), ("DeviceId", gpu)]
        for name, value in (("EngineRunningRequests", 2.0), ("EngineCacheUsage", 30.0)):
            metrics.model("m", "1.0").handler_metric(name, value, "Count", "gauge", version)
    figures, bounds = language_figures(metrics)

    assert bounds == {"first": (0.1, 1.0)}
    assert figures == {
        "m/1.0": {"first": [0.5, 0, 1, 0], "engineRunning": 4, "cache": 30},
        "n/2": {"tokensOut": 7},
    }
