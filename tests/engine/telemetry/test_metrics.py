import re

from tests.engine.telemetry.samples import HOST, samples

from modelserver.engine.telemetry.gpus import GpuReading
from modelserver.engine.telemetry.metrics import ServerMetrics, host_name
from modelserver.engine.telemetry.system import SystemReading


def test_responses_are_counted_by_class(metrics):
    """Answers count by class; whatever is neither 2xx nor 4xx is 5xx, as in TorchServe."""
    for status in (200, 206, 404, 500, 503, 301):
        metrics.response(status)

    assert samples(metrics, "Requests2XX", "Requests4XX", "Requests5XX") == {
        f"Requests2XX{HOST}": 2,
        f"Requests4XX{HOST}": 1,
        f"Requests5XX{HOST}": 3,
    }


def test_a_broken_callback_costs_only_its_own_gauges(metrics, caplog):
    called = []
    metrics.on_render(lambda: 1 / 0)
    metrics.on_render(lambda: called.append(True))

    assert b"Requests2XX" in b"".join(metrics.pieces())
    assert called == [True]
    assert "A metrics callback failed" in caplog.text


def lines_of(metrics, model):
    return [line for line in b"".join(metrics.pieces()).decode().splitlines() if f'"{model}"' in line]


def test_hidden_versions_count_on_and_nothing_of_them_is_visible(metrics):
    """Requests that name no version are visible while one of the model's versions is."""
    first, second = (metrics.model("m", version) for version in ("1.0", "2.0"))
    first.requests.received(explicit_version=False)
    second.series.hide()
    assert any('"default"' in line for line in lines_of(metrics, "m"))
    first.series.hide()
    assert lines_of(metrics, "m") == []

    first.requests.received(explicit_version=False)
    second.series.show()
    counts = [line for line in lines_of(metrics, "m") if line.startswith("ts_inference_requests_total")]
    (count,) = (line for line in counts if '"default"' in line)
    assert count.endswith(" 2.0")
    for version in ("1.0", "2.0"):
        metrics.forget("m", version)
    assert lines_of(metrics, "m") == []


def test_forgetting_a_version_leaves_the_others(metrics):
    for version in ("1.0", "2.0"):
        model = metrics.model("m", version)
        model.requests.received(explicit_version=False)
        model.workers.loaded(f"W-1-m_{version}", 1)
        model.requests.rejected("queue_full")
        model.workers.set_states({"ready": 1})
        model.handler_metric("own", 1, "ms", "gauge", [("ModelName", "m")])
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


def test_family_that_follows_versions_has_none_that_is_gone(metrics):
    """Also if something is counted of it afterwards; what the other labels are does not matter."""
    family = metrics.counter("modelserver_own_total", "Own.", ("model_name", "model_version", "result"))
    metrics.follow_versions(family)
    for version in ("1.0", "2.0"):
        metrics.model("m", version)
        family.labels("m", version, "good").add(1.0)
    assert family.series_count == 2
    metrics.forget("m", "1.0")
    family.labels("m", "1.0", "bad").add(1.0)
    metrics.families()

    assert [values for values, _ in family.series] == [("m", "2.0", "good")]
    metrics.forget("m", "2.0")
    metrics.families()
    assert family.series_count == 0


def test_load_and_unload_leaves_nothing_behind(metrics):
    """A thousand registrations of new names leave the text as long as it was (F69, F72)."""
    before = len(b"".join(metrics.pieces()))
    for number in range(1000):
        metrics.model(f"model-{number}", "1.0").requests.received(explicit_version=True)
        metrics.forget(f"model-{number}", "1.0")

    assert len(b"".join(metrics.pieces()).replace(b"QueueTime", b"")) <= before + 200


def test_readings_of_the_host_are_rendered(metrics):
    gpu = GpuReading(1, 50.0, 10.0, 25.0, 2048.0)
    metrics.system(SystemReading(12.5, 100.0, 300.0, 25.0, 7.0, 3.0, 70.0, (gpu,)))
    host = {
        "CPUUtilization": 12.5,
        "MemoryUsed": 100,
        "MemoryAvailable": 300,
        "MemoryUtilization": 25,
        "DiskUsage": 7,
        "DiskAvailable": 3,
        "DiskUtilization": 70,
    }
    device = {"GPUUtilization": 50, "GPUMemoryUsed": 2048, "GPUMemoryUtilization": 25}

    assert samples(metrics, *host) == {f"{name}{HOST}": value for name, value in host.items()}
    assert samples(metrics, *device) == {
        f'{name}{{Level="Host",DeviceId="1",Hostname="h"}}': value for name, value in device.items()
    }


def test_host_name_is_never_empty(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert host_name() == "Unknown"


def test_health_checks_are_counted_apart(metrics):
    """What kubelet sees while a model loads is no error of a request, but in TorchServe (reference 15.3)."""
    metrics.response(503, "/v2/health/ready")
    metrics.response(200, "/v2/models/m/ready")
    metrics.response(200, "/predictions/m")
    result = samples(metrics)

    assert (result[f"Requests2XX{HOST}"], result[f"Requests5XX{HOST}"]) == (1, 0)
    checks = "modelserver_health_checks_total"
    assert result[f'{checks}{{path="/v2/health/ready",code="5xx"}}'] == 1
    assert result[f'{checks}{{path="/v2/models/{{name}}/ready",code="2xx"}}'] == 1

    metrics = ServerMetrics(hostname="h", as_torchserve=True)
    metrics.response(500, "/ping")
    result = samples(metrics)

    assert result[f"Requests5XX{HOST[:-1]},}}"] == 1
    assert result['modelserver_health_checks_total{path="/ping",code="5xx",}'] == 1
