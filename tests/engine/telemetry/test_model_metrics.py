import re
from pathlib import Path

import pytest
from tests.engine.telemetry.samples import HOST, MODEL, samples

import modelserver
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.model_metrics import MAX_WORKERS, MOST_NEW, REJECTION_REASONS
from modelserver.errors import InternalError


@pytest.fixture
def model(metrics):
    return metrics.model("m", "1.0")


def test_requests_name_the_version_only_when_the_client_did(metrics, model):
    model.requests.received(explicit_version=True)
    model.requests.received(explicit_version=False)
    model.requests.received(explicit_version=False)

    assert samples(metrics, "ts_inference_requests_total") == {
        'ts_inference_requests_total{model_name="m",model_version="1.0",hostname="h"}': 1,
        'ts_inference_requests_total{model_name="m",model_version="default",hostname="h"}': 2,
    }


def test_latencies_are_microseconds(metrics, model):
    model.requests.answered(0.5, 0.0025, explicit_version=True)
    model.requests.answered(0.5, 0.0039, explicit_version=True)
    model.requests.answered(0.25, 0.0078, explicit_version=False)
    result = samples(metrics)

    assert result[f'ts_inference_latency_microseconds{MODEL},hostname="h"}}'] == pytest.approx(1e6)
    assert result[f'ts_queue_latency_microseconds{MODEL},hostname="h"}}'] == pytest.approx(6400)
    assert result[f"QueueTime{HOST}"] == 7
    assert result[f"modelserver_request_seconds_sum{MODEL}}}"] == 1.25
    assert result[f'modelserver_request_seconds_bucket{MODEL},le="0.3"}}'] == 1


def test_batch_is_observed_once(metrics, model):
    model.batches.finished(8, 3, 32, "delay", 0.02, (0.001, 0.018, 0.001))
    model.batches.finished(32, 32, 32, "surprise", 0.02, (0.0, 0.0, 0.0))
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


def test_observations_do_not_pile_up(metrics, model):
    """Nobody has to read the metrics: what requests left is counted now and then, without loss."""
    for _ in range(1000):
        for _ in range(3):
            model.batches.waited(0.02)
            model.requests.answered(0.25, 0.02, explicit_version=False)
        model.batches.finished(4, 3, 4, "size", 0.02, (0.0, 0.02, 0.0))
        assert len(model.batches.queue_seconds.new) <= MOST_NEW
        assert len(model.batches.handler_seconds.new) <= MOST_NEW
        # One that is read more often than the others leaves theirs to be counted.
        assert sum(model.batches.sizes.counts) > 0
    result = samples(metrics)

    assert result[f"modelserver_queue_seconds_count{MODEL}}}"] == 3000
    assert result[f"modelserver_request_seconds_count{MODEL}}}"] == 3000
    assert result[f'modelserver_inference_seconds_bucket{MODEL},le="0.025"}}'] == 1000
    assert result[f'modelserver_batch_requests_bucket{MODEL},le="2.0"}}'] == 0
    assert result[f"modelserver_batch_requests_sum{MODEL}}}"] == 3000


def test_each_outcome_has_a_counter(metrics, model):
    model.requests.rejected("queue_full")
    model.requests.rejected("queue_full")
    model.requests.cancelled(0.5)
    model.requests.expired()
    model.requests.split()
    model.batches.isolated(2)
    model.requests.broken_off()
    model.workers.count("gpu_failures_total")
    model.batches.waited(0.02)
    result = samples(metrics)

    for name, value in (
        ("cancelled_total", 1),
        ("expired_total", 1),
        ("split_requests_total", 1),
        ("isolated_total", 2),
        ("broken_off_total", 1),
        ("gpu_failures_total", 1),
        ("queue_seconds_sum", 0.02),
    ):
        assert result[f"modelserver_{name}{MODEL}}}"] == value
    assert result[f'modelserver_rejected_total{MODEL},reason="queue_full"}}'] == 2
    assert model.requests.unanswered == 4


def test_gauges_are_set_when_rendering(metrics, model):
    states = [{"ready": 2}, {"loading": 1}]

    def show():
        model.batches.queue_requests.set(3)
        model.batches.queue_instances.set(12)
        model.batches.in_flight.set(2)
        model.workers.set_states(states.pop(0))

    metrics.on_render(show)
    samples(metrics)
    result = samples(metrics)

    assert result[f"modelserver_queue_requests{MODEL}}}"] == 3
    assert result[f"modelserver_queue_instances{MODEL}}}"] == 12
    assert result[f"modelserver_batches_in_flight{MODEL}}}"] == 2
    assert result[f'modelserver_workers{MODEL},state="ready"}}'] == 0
    assert result[f'modelserver_workers{MODEL},state="loading"}}'] == 1


def test_times_of_workers_are_rendered(metrics, model):
    """Of a crash loop, which brings new worker names for ever, only the last ones are shown (F69)."""
    model.workers.loaded("W-9000-m_1.0", 1.5)
    key = 'WorkerLoadTime{WorkerName="W-9000-m_1.0",Level="Host",Hostname="h"}'

    assert samples(metrics, "WorkerLoadTime") == {key: 1500}
    model.workers.gone("W-9000-m_1.0")
    assert samples(metrics, "WorkerLoadTime") == {}

    for number in range(MAX_WORKERS + 100):
        model.workers.loaded(f"W-{number}-m_1.0", 1)

    assert len(samples(metrics, "WorkerLoadTime")) == MAX_WORKERS

    model.workers.set_overhead(0.0029)

    assert samples(metrics, "WorkerThreadTime") == {f"WorkerThreadTime{HOST}": 2}


def test_log_mode_logs_the_times_of_each_request(caplog):
    """Latency and queue time are lines too, as they are in TorchServe's ts_metrics.log (reference 15.5)."""
    caplog.set_level("INFO")
    model = ServerMetrics(mode="log", hostname="h").model("m", "1.0")
    model.requests.answered(0.25, 0.125, explicit_version=True)
    of = "|#model_name:m,model_version:1.0|#hostname:h,timestamp"

    assert [record.getMessage().rsplit(":", 1)[0] for record in caplog.records] == [
        f"ts_inference_latency_microseconds.Microseconds:250000.0{of}",
        f"ts_queue_latency_microseconds.Microseconds:125000.0{of}",
        "QueueTime.Milliseconds:125.0|#Level:Host|#hostname:h,timestamp",
    ]


def test_changes_by_autoscaling_are_counted(metrics, model):
    wish, before = f"modelserver_workers_wished{MODEL}}}", samples(metrics)
    model.workers.set_wish(3)
    for change in (("up", "queue_wait"), ("up", "queue_wait"), ("down", "idle")):
        model.workers.count("scalings_total", *change)
    result = samples(metrics)
    model.workers.set_wish(None)

    assert result[f'modelserver_scalings_total{MODEL},direction="up",reason="queue_wait"}}'] == 2
    assert result[f'modelserver_scalings_total{MODEL},direction="down",reason="idle"}}'] == 1
    assert (before.get(wish), result[wish], samples(metrics).get(wish)) == (None, 3, None)
    metrics.forget("m", "1.0")
    assert samples(metrics, "modelserver_scalings_total") == {}


def test_every_reason_of_a_refusal_is_listed():
    code = Path(modelserver.__file__).parent
    reasons = [
        reason
        for folder in ("engine/batching", "engine/pools", "ext/sequences")
        for path in (code / folder).glob("*.py")
        for reason in re.findall(r'(?:QueueFull|rejected|super\(\).__init__)\("(\w+)"[,)]', path.read_text())
    ]

    assert set(reasons) == {*REJECTION_REASONS}


def test_counted_answers_do_not_become_fewer(metrics, model):
    """A scrape may count an answer whose encoding then fails; for Prometheus, less means a restart."""
    result = []
    for outcome in ("answered", "failed", "answered"):
        if outcome == "answered":
            model.requests.answered(0.1, 0.0, explicit_version=False)
        else:
            model.requests.totals.fail(0.1, answered=True)
            model.requests.failed(InternalError("no"), "r")
        result.append(samples(metrics)[f'modelserver_requests_total{MODEL},code="2xx"}}'])

    assert result == [1, 1, 1]
