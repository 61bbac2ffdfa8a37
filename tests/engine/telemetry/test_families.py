import re

from tests.engine.telemetry.samples import MODEL, samples

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.model_metrics import REJECTION_REASONS
from modelserver.errors import InternalError


def test_torchserve_metrics_have_its_names_and_help(metrics):
    """Every metric of reference 15.3 is announced under its name, with its type and TorchServe's help."""
    text = b"".join(metrics.pieces()).decode()
    counters = (
        "Requests2XX Requests4XX Requests5XX ts_inference_requests_total "
        "ts_inference_latency_microseconds ts_queue_latency_microseconds"
    )
    gauges = (
        "QueueTime WorkerThreadTime WorkerLoadTime CPUUtilization MemoryUsed MemoryAvailable "
        "MemoryUtilization DiskUsage DiskAvailable DiskUtilization GPUMemoryUtilization "
        "GPUMemoryUsed GPUUtilization HandlerTime PredictionTime"
    )

    for kind, names in (("counter", counters), ("gauge", gauges)):
        for name in names.split():
            assert f"# TYPE {name} {kind}\n" in text
            assert re.search(
                rf"^# HELP {name} Torchserve prometheus {kind} metric with unit: \w+$", text, re.M
            )


def test_legacy_mode_shows_three_counters(caplog):
    caplog.set_level("INFO")
    metrics = ServerMetrics(mode="legacy", hostname="h")
    metrics.model("m", "1.0").requests.received(explicit_version=True)
    metrics.response(200)
    families = re.findall(r"# TYPE (\S+)", b"".join(metrics.pieces()).decode())

    latencies = ["ts_inference_latency_microseconds", "ts_queue_latency_microseconds"]
    assert families == ["ts_inference_requests_total", *latencies]
    assert [record.getMessage().split(".")[0] for record in caplog.records] == ["Requests2XX"]
    assert b"".join(metrics.pieces(["Requests2XX"])) == b""


def test_series_of_a_version_exist_from_the_start(metrics):
    """The first error, or refusal, is an increase for Prometheus; an unregistered version shows none."""
    metrics.model("m", "1.0")
    result = samples(metrics, "modelserver_requests_total", "modelserver_rejected_total")

    assert set(result.values()) == {0}
    assert {f'modelserver_requests_total{MODEL},code="{digit}xx"}}' for digit in (2, 3, 4, 5)} <= set(result)
    reasons = {key.split('reason="')[1].split('"')[0] for key in result if "rejected" in key}
    assert reasons == {*REJECTION_REASONS}
    metrics.model("m", "1.0").requests.failed(InternalError("no"), "r")
    metrics.forget("m", "1.0")
    assert samples(metrics, "modelserver_requests_total", "modelserver_errors_total") == {}
