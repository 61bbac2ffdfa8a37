"""Health while models load, fail, and are ready (reference 5.4, 5.9, 6.2)."""

from tests.e2e.serving import archived, wait_until

GATED = """
import time
from pathlib import Path

def handle(data, context):
    while not Path({gate!r}).exists():
        time.sleep(0.01)
    return data and ["loaded"] * len(data)
"""


def probes(server, *models):
    """The statuses of the server's own probes, and of those of models."""
    paths = ["/ping", "/livez", "/readyz", "/v2/health/ready"]
    paths += [path for model in models for path in (f"/v1/models/{model}", f"/v2/models/{model}/ready")]
    return [server.inference.get(path).status_code for path in paths]


def test_probes_follow_the_models(server, model_store, tmp_path):
    """A server without models is ready. Until a model is loaded, describe says LOADING and readiness no, of
    the server and the model, while /ping says Healthy, as TorchServe's does. One that cannot load is FAILED,
    with the reason, and is not tried again (F40).
    """
    for client in (server.inference, server.management, server.metrics):
        assert client.get("/livez").text == '{\n  "status": "Live"\n}\n'
        assert client.get("/readyz").text == '{\n  "status": "Ready"\n}\n'
        assert client.head("/readyz").status_code == 200
        assert client.post("/readyz").status_code == 405
    archived(model_store, "late", GATED.format(gate=str(tmp_path / "gate")))
    assert server.register("late.mar", synchronous=False).status_code == 202
    loading = probes(server, "late")
    message = server.inference.get("/readyz").json()["message"]
    described = server.describe("late")["workers"][0]["status"]

    assert (described, loading) == ("LOADING", [200, 200, 503, 503, 503, 503])
    assert message == "Not ready: 1 of 1 models have no loaded worker."
    (tmp_path / "gate").touch()
    wait_until(lambda: server.inference.get("/readyz").status_code == 200, "it is ready")
    assert server.describe("late")["workers"][0]["status"] == "READY"
    assert probes(server, "late") == [200] * 6

    assert server.register("missing_module.mar", synchronous=False).status_code == 202
    wait_until(lambda: server.describe("missing_module")["workers"][0]["status"] == "FAILED", "it gives up")
    assert "surely_not_installed" in server.describe("missing_module")["workers"][0]["failure"]
    assert probes(server, "missing_module", "late") == [500, 200, 503, 503, 503, 503, 200, 200]
    assert server.inference.get("/ping").json() == {"status": "Unhealthy"}
    assert server.predict("missing_module").status_code == 503
    message = server.inference.get("/readyz").json()["message"]
    assert message == "Not ready: 1 of 2 models have no loaded worker."
    assert server.home.log().count("is given up") == 1
    server.unregister("missing_module")
    assert probes(server) == [200] * 4
    checks = {"path": "/readyz", "code": "2xx"}
    assert server.metric("modelserver_health_checks_total", **checks) > 0
