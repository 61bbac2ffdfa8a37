"""Health tells the truth while models load, fail, and are there (reference 5.4, 5.9, 6.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e.serving import Home, Server, serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READY = '{\n  "status": "Ready"\n}\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_store: Path) -> Iterator[Server]:
    """A server without models, whose slow one takes a second to load."""
    home = Home(tmp_path_factory.mktemp("health"), {"E2E_LOAD_SECONDS": "1"})
    with serving(Server(home, model_store)) as started:
        yield started


def status(server: Server, path: str) -> int:
    return server.inference.get(path).status_code


def probes(server: Server) -> dict[str, Any]:
    """What each of the server's own probes answers."""
    return {path: status(server, path) for path in ("/ping", "/livez", "/readyz", "/v2/health/ready")}


def test_a_server_without_models_is_ready(server: Server) -> None:
    """The probes are answered at every address, by GET and HEAD."""
    for client in (server.inference, server.management, server.metrics):
        assert client.get("/livez").text == '{\n  "status": "Live"\n}\n'
        assert client.get("/readyz").text == READY
        assert client.head("/readyz").status_code == 200
        assert client.post("/readyz").status_code == 405


def test_a_model_that_loads_is_not_ready(server: Server) -> None:
    """Until it is loaded describe says LOADING and readiness says no, of the server and the model; /ping says
    Healthy, as TorchServe's does. Then all say yes.
    """
    assert server.register("slow_start.mar", synchronous=False).status_code == 202
    try:
        loading = probes(server)
        said = server.inference.get("/readyz").json()
        described = server.describe("slow_start")["workers"][0]["status"]
        models = [status(server, f"/{version}/models/slow_start{end}") for version, end in
                  (("v1", ""), ("v2", "/ready"))]  # fmt: skip

        assert described == "LOADING"
        assert loading == {"/ping": 200, "/livez": 200, "/readyz": 503, "/v2/health/ready": 503}
        assert said["message"] == "Not ready: 1 of 1 models have no loaded worker."
        assert models == [503, 503]
        wait_until(lambda: status(server, "/readyz") == 200, "it is ready")
        assert server.describe("slow_start")["workers"][0]["status"] == "READY"
        assert set(probes(server).values()) == {200}
        assert [status(server, "/v1/models/slow_start"), status(server, "/v2/models/slow_start/ready")] == [
            200,
            200,
        ]
    finally:
        server.unregister("slow_start")


def test_a_model_that_cannot_load_is_failed(server: Server) -> None:
    """Describe says FAILED with the reason, and neither the server nor the model is ready."""
    server.registered("echo.mar")
    assert server.register("missing_module.mar", synchronous=False).status_code == 202
    try:
        wait_until(
            lambda: server.describe("missing_module")["workers"][0]["status"] == "FAILED", "it is given up"
        )
        assert "surely_not_installed" in server.describe("missing_module")["workers"][0]["failure"]
        assert probes(server) == {"/ping": 500, "/livez": 200, "/readyz": 503, "/v2/health/ready": 503}
        said = server.inference.get("/readyz").json()
        assert said["message"] == "Not ready: 1 of 2 models have no loaded worker."
        assert [status(server, f"/v2/models/{name}/ready") for name in ("missing_module", "echo")] == [
            503,
            200,
        ]
    finally:
        server.unregister("missing_module")
    assert set(probes(server).values()) == {200}
