from __future__ import annotations

import re
from pathlib import Path

import pytest

import modelserver
from modelserver.engine.telemetry.gpus import GpuReading
from modelserver.engine.telemetry.metrics import (
    MAX_WORKERS_SHOWN,
    MOST_NEW,
    REJECTION_REASONS,
    ServerMetrics,
    host_name,
)
from modelserver.engine.telemetry.system import SystemReading
from modelserver.errors import InternalError

HOST = '{Level="Host",Hostname="h"}'
MODEL = '{model_name="m",model_version="1.0"'


@pytest.fixture
def metrics():
    return ServerMetrics(hostname="h")


def samples(metrics: ServerMetrics, *names: str) -> dict[str, float]:
    lines = metrics.render(names).decode().splitlines()
    return {key: float(value) for key, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}


def test_torchserve_names_and_help(metrics):
    """Every metric of reference 15.3 is announced under its name, with its type and TorchServe's help."""
    text = metrics.render().decode()
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


def test_responses_by_class(metrics):
    """Answers count by class; whatever is neither 2xx nor 4xx is 5xx, as in TorchServe."""
    for status in (200, 206, 404, 500, 503, 301):
        metrics.response(status)

    assert samples(metrics, "Requests2XX", "Requests4XX", "Requests5XX") == {
        f"Requests2XX{HOST}": 2,
        f"Requests4XX{HOST}": 1,
        f"Requests5XX{HOST}": 3,
    }


def test_requests_name_the_version_only_when_the_client_did(metrics):
    """`model_version` is `default` for requests that named no version."""
    model = metrics.model("m", "1.0")
    model.request(explicit_version=True)
    model.request(explicit_version=False)
    model.request(explicit_version=False)

    assert samples(metrics, "ts_inference_requests_total") == {
        'ts_inference_requests_total{model_name="m",model_version="1.0",hostname="h"}': 1,
        'ts_inference_requests_total{model_name="m",model_version="default",hostname="h"}': 2,
    }


def test_latencies_are_microseconds(metrics):
    """Latencies sum up in microseconds; QueueTime is the last one's whole milliseconds."""
    model = metrics.model("m", "1.0")
    model.answered(0.5, 0.0025, explicit_version=True)
    model.answered(0.5, 0.0039, explicit_version=True)
    model.answered(0.25, 0.0078, explicit_version=False)
    result = samples(metrics)

    assert result[f'ts_inference_latency_microseconds{MODEL},hostname="h"}}'] == pytest.approx(1e6)
    assert result[f'ts_queue_latency_microseconds{MODEL},hostname="h"}}'] == pytest.approx(6400)
    assert result[f"QueueTime{HOST}"] == 7
    assert result[f"modelserver_request_seconds_sum{MODEL}}}"] == 1.25
    assert result[f'modelserver_request_seconds_bucket{MODEL},le="0.3"}}'] == 1


def test_batches(metrics):
    """A batch is observed once: size, requests, fill, times and why it went."""
    model = metrics.model("m", "1.0")
    model.batch(8, 3, 32, "delay", 0.02, (0.001, 0.018, 0.001))
    model.batch(32, 32, 32, "surprise", 0.02, (0.0, 0.0, 0.0))
    result = samples(metrics)

    assert result[f"modelserver_batch_size_sum{MODEL}}}"] == 40
    assert result[f"modelserver_batch_requests_sum{MODEL}}}"] == 35
    assert result[f"modelserver_batch_fill_ratio_sum{MODEL}}}"] == 1.25
    assert result[f"modelserver_handler_seconds_count{MODEL}}}"] == 2
    assert result[f"modelserver_inference_seconds_count{MODEL}}}"] == 1
    assert result[f"modelserver_inference_seconds_sum{MODEL}}}"] == 0.018
    assert result[f'modelserver_dispatch_total{MODEL},reason="delay"}}'] == 1
    assert result[f'modelserver_dispatch_total{MODEL},reason="flush"}}'] == 1
    assert result[f'modelserver_dispatch_total{MODEL},reason="size"}}'] == 0


def test_observations_do_not_pile_up(metrics):
    """Nobody has to read the metrics: what requests left is counted now and then, without loss."""
    model = metrics.model("m", "1.0")
    for _ in range(1000):
        for _ in range(3):
            model.queue_wait(0.02)
            model.answered(0.25, 0.02, explicit_version=False)
        model.batch(4, 3, 4, "size", 0.02, (0.0, 0.02, 0.0))
        assert len(model.queue_seconds.new) <= MOST_NEW
        assert len(model.handler_seconds.new) <= MOST_NEW
        # One that is read more often than the others leaves theirs to be counted.
        assert sum(model.batch_sizes.counts) > 0
    result = samples(metrics)

    assert result[f"modelserver_queue_seconds_count{MODEL}}}"] == 3000
    assert result[f"modelserver_request_seconds_count{MODEL}}}"] == 3000
    assert result[f'modelserver_inference_seconds_bucket{MODEL},le="0.025"}}'] == 1000
    assert result[f'modelserver_batch_requests_bucket{MODEL},le="2.0"}}'] == 0
    assert result[f"modelserver_batch_requests_sum{MODEL}}}"] == 3000


def test_outcomes(metrics):
    """Each way that a request can end has a counter."""
    model = metrics.model("m", "1.0")
    model.rejected("queue_full")
    model.rejected("queue_full")
    model.cancelled(0.5)
    model.expired()
    model.split()
    model.isolated(2)
    model.broken_off()
    model.gpu_failed()
    model.queue_wait(0.02)
    result = samples(metrics)

    assert result[f'modelserver_rejected_total{MODEL},reason="queue_full"}}'] == 2
    assert result[f"modelserver_cancelled_total{MODEL}}}"] == 1
    assert result[f"modelserver_expired_total{MODEL}}}"] == 1
    assert result[f"modelserver_split_requests_total{MODEL}}}"] == 1
    assert result[f"modelserver_isolated_total{MODEL}}}"] == 2
    assert result[f"modelserver_broken_off_total{MODEL}}}"] == 1
    assert result[f"modelserver_gpu_failures_total{MODEL}}}"] == 1
    assert result[f"modelserver_queue_seconds_sum{MODEL}}}"] == 0.02
    assert model.unanswered == 4


def test_gauges_are_set_when_rendering(metrics):
    """Callbacks set gauges at the moment of the scrape; a state nobody is in shows 0."""
    model = metrics.model("m", "1.0")
    states = [{"ready": 2}, {"loading": 1}]

    def show() -> None:
        model.set_queue(3, 12)
        model.set_in_flight(2)
        model.set_workers(states.pop(0))

    metrics.on_render(show)
    samples(metrics)
    result = samples(metrics)

    assert result[f"modelserver_queue_requests{MODEL}}}"] == 3
    assert result[f"modelserver_queue_instances{MODEL}}}"] == 12
    assert result[f"modelserver_batches_in_flight{MODEL}}}"] == 2
    assert result[f'modelserver_workers{MODEL},state="ready"}}'] == 0
    assert result[f'modelserver_workers{MODEL},state="loading"}}'] == 1


def test_a_broken_callback_costs_only_its_own_gauges(metrics, caplog):
    """A callback that raises is logged and the scrape goes on."""
    called = []
    metrics.on_render(lambda: 1 / 0)
    metrics.on_render(lambda: called.append(True))

    assert b"Requests2XX" in metrics.render()
    assert called == [True]
    assert "A metrics callback failed" in caplog.text


def test_worker_load_times(metrics):
    """A worker's load time is shown in milliseconds until the worker is gone."""
    model = metrics.model("m", "1.0")
    model.worker_loaded("W-9000-m_1.0", 1.5)
    key = 'WorkerLoadTime{WorkerName="W-9000-m_1.0",Level="Host",Hostname="h"}'

    assert samples(metrics, "WorkerLoadTime") == {key: 1500}
    model.worker_gone("W-9000-m_1.0")
    assert samples(metrics, "WorkerLoadTime") == {}


def test_worker_restarts_do_not_grow_the_series(metrics):
    """A crash loop brings new worker names for ever; only the last ones are shown (F69)."""
    model = metrics.model("m", "1.0")
    for number in range(MAX_WORKERS_SHOWN + 100):
        model.worker_loaded(f"W-{number}-m_1.0", 1)

    assert len(samples(metrics, "WorkerLoadTime")) == MAX_WORKERS_SHOWN


def test_worker_overhead(metrics):
    """WorkerThreadTime is whole milliseconds of the last batch."""
    metrics.model("m", "1.0").worker_overhead(0.0029)

    assert samples(metrics, "WorkerThreadTime") == {f"WorkerThreadTime{HOST}": 2}


def test_forgetting_a_version_leaves_the_others(metrics):
    """The series of a version go with it, those of requests without a version with the last one."""
    for version in ("1.0", "2.0"):
        model = metrics.model("m", version)
        model.request(explicit_version=False)
        model.worker_loaded(f"W-1-m_{version}", 1)
        model.rejected("queue_full")
        model.set_workers({"ready": 1})
        model.model_metric("own", 1, "ms", "gauge", [("ModelName", "m")])
    metrics.forget("m", "1.0")
    left = "".join(samples(metrics))

    assert 'model_version="1.0"' not in left
    assert "m_1.0" not in left
    assert 'model_version="2.0"' in left
    assert 'model_version="default"' in left
    assert "own{" in left
    metrics.forget("m", "2.0")
    metrics.forget("m", "2.0")
    assert [key for key in samples(metrics) if "m" in re.findall(r'"([^"]*)"', key)] == []


def test_load_and_unload_leaves_nothing_behind(metrics):
    """A thousand registrations of new names leave the text as long as it was (F69, F72)."""
    before = len(metrics.render())
    for number in range(1000):
        metrics.model(f"model-{number}", "1.0").request(explicit_version=True)
        metrics.forget(f"model-{number}", "1.0")

    assert len(metrics.render().replace(b"QueueTime", b"")) <= before + 200


def test_system_readings(metrics):
    """A reading of the host fills TorchServe's gauges, GPUs by device."""
    gpu = GpuReading(1, 50.0, 10.0, 25.0, 2048.0)
    metrics.system(SystemReading(12.5, 100.0, 300.0, 25.0, 7.0, 3.0, 70.0, (gpu,)))
    result = samples(metrics)
    device = '{Level="Host",DeviceId="1",Hostname="h"}'

    assert result[f"CPUUtilization{HOST}"] == 12.5
    assert result[f"MemoryUsed{HOST}"] == 100
    assert result[f"MemoryAvailable{HOST}"] == 300
    assert result[f"MemoryUtilization{HOST}"] == 25
    assert result[f"DiskUsage{HOST}"] == 7
    assert result[f"DiskAvailable{HOST}"] == 3
    assert result[f"DiskUtilization{HOST}"] == 70
    assert result[f"GPUUtilization{device}"] == 50
    assert result[f"GPUMemoryUsed{device}"] == 2048
    assert result[f"GPUMemoryUtilization{device}"] == 25


def test_log_mode_logs_the_times_of_each_request(caplog):
    """Latency and queue time are lines too, as they are in TorchServe's ts_metrics.log (reference 15.5)."""
    caplog.set_level("INFO")
    model = ServerMetrics(mode="log", hostname="h").model("m", "1.0")
    model.answered(0.25, 0.125, explicit_version=True)
    of = "|#model_name:m,model_version:1.0|#hostname:h,timestamp"

    assert [record.getMessage().rsplit(":", 1)[0] for record in caplog.records] == [
        f"ts_inference_latency_microseconds.Microseconds:250000.0{of}",
        f"ts_queue_latency_microseconds.Microseconds:125000.0{of}",
        "QueueTime.Milliseconds:125.0|#Level:Host|#hostname:h,timestamp",
    ]


def test_legacy_mode_shows_three_counters(caplog):
    """In legacy mode only the ts_ counters are shown, and those are not logged."""
    caplog.set_level("INFO")
    metrics = ServerMetrics(mode="legacy", hostname="h")
    metrics.model("m", "1.0").request(explicit_version=True)
    metrics.response(200)
    families = re.findall(r"# TYPE (\S+)", metrics.render().decode())

    assert families == [
        "ts_inference_requests_total",
        "ts_inference_latency_microseconds",
        "ts_queue_latency_microseconds",
    ]
    assert [record.getMessage().split(".")[0] for record in caplog.records] == ["Requests2XX"]
    assert metrics.render(["Requests2XX"]) == b""


def test_host_name_is_never_empty(monkeypatch):
    """A machine without a name is called Unknown."""
    monkeypatch.setattr("socket.gethostname", lambda: "")

    assert host_name() == "Unknown"


def test_autoscaling():
    """Changes are counted by direction and reason; the wish is shown while autoscaling is on."""
    metrics = ServerMetrics(hostname="h")
    model = metrics.model("m", "1.0")
    assert "modelserver_workers_wished{" not in metrics.render().decode()
    model.wished(3)
    model.scaled("up", "queue_wait")
    model.scaled("up", "queue_wait")
    model.scaled("down", "idle")
    text = metrics.render().decode()
    assert 'modelserver_workers_wished{model_name="m",model_version="1.0"} 3.0' in text
    of = 'modelserver_scalings_total{model_name="m",model_version="1.0",'
    assert f'{of}direction="up",reason="queue_wait"}} 2.0' in text
    assert f'{of}direction="down",reason="idle"}} 1.0' in text

    model.wished(None)
    assert "modelserver_workers_wished{" not in metrics.render().decode()
    metrics.forget("m", "1.0")
    assert "modelserver_scalings_total{" not in metrics.render().decode()


def test_health_checks_are_counted_apart(metrics):
    """What kubelet sees while a model loads is no error of a request."""
    metrics.response(503, "/v2/health/ready")
    metrics.response(200, "/v2/models/m/ready")
    metrics.response(200, "/predictions/m")
    result = samples(metrics)

    assert (result[f"Requests2XX{HOST}"], result[f"Requests5XX{HOST}"]) == (1, 0)
    checks = "modelserver_health_checks_total"
    assert result[f'{checks}{{path="/v2/health/ready",code="5xx"}}'] == 1
    assert result[f'{checks}{{path="/v2/models/{{name}}/ready",code="2xx"}}'] == 1


def test_torchserve_counts_health_checks_as_requests():
    """Under its defaults they are among the others, as it counts them (reference 15.3)."""
    metrics = ServerMetrics(hostname="h", as_torchserve=True)
    metrics.response(500, "/ping")
    result = samples(metrics)

    assert result[f"Requests5XX{HOST[:-1]},}}"] == 1
    assert result['modelserver_health_checks_total{path="/ping",code="5xx",}'] == 1


def test_series_of_a_version_exist_from_the_start(metrics):
    """The first error, or refusal, is an increase for Prometheus; an unregistered version shows none."""
    metrics.model("m", "1.0")
    result = samples(metrics, "modelserver_requests_total", "modelserver_rejected_total")

    assert set(result.values()) == {0}
    assert {f'modelserver_requests_total{MODEL},code="{digit}xx"}}' for digit in (2, 3, 4, 5)} <= set(result)
    reasons = {key.split('reason="')[1].split('"')[0] for key in result if "rejected" in key}
    assert reasons == {*REJECTION_REASONS}
    metrics.model("m", "1.0").failed(InternalError("no"), "r")
    metrics.forget("m", "1.0")
    assert samples(metrics, "modelserver_requests_total", "modelserver_errors_total") == {}


def test_every_reason_of_a_refusal_is_listed():
    """Those that the queues and pools give."""
    code = Path(modelserver.__file__).parent
    reasons = [
        reason
        for folder in ("engine/batching", "engine/pools", "ext/sequences")
        for path in (code / folder).glob("*.py")
        for reason in re.findall(r'(?:QueueFull|rejected)\("(\w+)"\)', path.read_text())
    ]

    assert set(reasons) == {*REJECTION_REASONS}


def test_counted_answers_do_not_become_fewer(metrics):
    """A scrape may count an answer whose encoding then fails; for Prometheus, less means a restart."""
    model = metrics.model("m", "1.0")
    result = []
    for outcome in ("answered", "failed", "answered"):
        if outcome == "answered":
            model.answered(0.1, 0.0, explicit_version=False)
        else:
            model.totals.fail(0.1, answered=True)
            model.failed(InternalError("no"), "r")
        result.append(samples(metrics)[f'modelserver_requests_total{MODEL},code="2xx"}}'])

    assert result == [1, 1, 1]
