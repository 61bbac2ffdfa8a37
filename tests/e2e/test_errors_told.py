"""What clients and operators are told about a handler that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.e2e.serving import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import StartServer

ORDER = {"do": "raise"}


@pytest.mark.parametrize("front_ends", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_failure_can_be_followed(start_server: StartServer, front_ends: int) -> None:
    """On loopback the answer says what went wrong and where; its id is in the body, in the log of models
    and in that of access.
    """
    server = start_server(frontend_processes=front_ends)
    server.registered("obey.mar")
    answer = server.inference.post("/predictions/obey", json=ORDER, headers={"x-request-id": "mine-7"})
    body = answer.json()

    assert (answer.status_code, answer.headers["x-request-id"]) == (503, "mine-7")
    assert list(body) == ["code", "type", "message", "request_id"]
    assert (body["code"], body["type"], body["request_id"]) == (503, "InternalServerException", "mine-7")
    assert body["message"].startswith("Prediction failed: ")
    assert "(obey.py, line " in body["message"]
    wait_until(lambda: "Failed for request mine-7:" in server.home.log("model_log.log"), "it is in the log")
    wait_until(lambda: " 503 " in server.home.log("access_log.log"), "the line is written")
    (line,) = [line for line in server.home.log("access_log.log").splitlines() if " 503 " in line]
    assert line.endswith(" mine-7")


@pytest.mark.parametrize("settings", [{"expose_errors": "false"}, {"compat_defaults": "torchserve"}])
def test_a_failure_may_be_kept_back(start_server: StartServer, settings: dict[str, str]) -> None:
    """Then the answer is TorchServe's; the log still says which request it was."""
    server = start_server(disable_token_authorization="true", enable_model_api="true", **settings)
    server.registered("obey.mar")
    answer = server.inference.post("/predictions/obey", json=ORDER, headers={"x-request-id": "mine-8"})

    assert answer.json() == {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}
    wait_until(lambda: "Failed for request mine-8:" in server.home.log("model_log.log"), "it is in the log")


V1 = "/v1/models/whole_body:predict"
BODY = {"instances": [1, 2]}


def test_a_handler_that_reads_the_whole_body(start_server: StartServer) -> None:
    """Where bodies are split the answer names the setting, and with the setting the handler runs."""
    server = start_server()
    server.registered("whole_body.mar")
    failed = server.inference.post(V1, json=BODY)
    server.unregister("whole_body")
    server.registered("whole_body.mar", split_instances="false")

    assert failed.status_code == 500
    assert "split_instances=false" in failed.json()["error"]
    assert server.inference.post(V1, json=BODY).json() == {"predictions": [2, 4]}


@pytest.mark.slow
def test_it_runs_with_torchserves_defaults(start_server: StartServer) -> None:
    """They do not split bodies."""
    server = start_server(
        disable_token_authorization="true", enable_model_api="true", compat_defaults="torchserve"
    )
    server.registered("whole_body.mar")

    assert server.inference.post(V1, json=BODY).json() == {"predictions": [2, 4]}
