"""What clients and operators learn about a handler that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.e2e.grpc_client import (
    INFERENCE,
    MANAGEMENT,
    channel,
    ending,
    grpc_server,
    manage,
    predict,
    stub,
)
from tests.e2e.serving import Server, serving, wait_until

from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import StartServer

ORDER = {"do": "raise"}


def assert_failure_can_be_followed(server: Server) -> None:
    """The answer has the reason and the place; its id is in the body, in the log of models and in that of
    access.
    """
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


def test_failure_can_be_followed(shared_server: Server) -> None:
    """On loopback the client gets the reason, and logs have the request's id."""
    assert_failure_can_be_followed(shared_server.registered("obey.mar"))


@pytest.mark.slow  # starts a server with two front ends
def test_failure_can_be_followed_through_front_ends(start_server: StartServer) -> None:
    """Front ends write the access log instead of the server."""
    assert_failure_can_be_followed(start_server(frontend_processes=2).registered("obey.mar"))


WITHOUT_REASON = {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}


def refused(server: Server) -> object:
    """The response to a request that fails, after the log has its id."""
    answer = server.inference.post("/predictions/obey", json=ORDER, headers={"x-request-id": "mine-8"})
    wait_until(lambda: "Failed for request mine-8:" in server.home.log("model_log.log"), "it is in the log")
    return answer.json()


def test_reasons_and_models_are_kept_back_where_settings_say_so(tmp_path: Path, model_store: Path) -> None:
    """With expose_errors=false answers are TorchServe's to the byte, over gRPC too, whose metadata and log
    have the id; without the model API nothing is registered or removed, and workers are scaled.
    """
    settings = {"expose_errors": "false", "enable_model_api": "false", "load_models": "obey.mar"}
    with (
        serving(grpc_server(tmp_path, model_store, **settings)) as server,
        channel(server, "inference") as inference,
        channel(server, "management") as management,
    ):
        server.wait_ready("obey", len(server.describe("obey")["workers"]))
        assert refused(server) == WITHOUT_REASON
        call = stub(inference, f"{INFERENCE}InferenceAPIsService").Predictions.future(
            predict("obey", body=b'{"do": "raise"}'), metadata=[("x-request-id", "mine-11")]
        )
        assert call.details() == "Prediction failed\norg.pytorch.serve.http.InternalServerException"
        assert ("x-request-id", "mine-11") in call.trailing_metadata()
        wait_until(lambda: "mine-11" in server.home.log("access_log.log"), "the call is logged")

        models = stub(management, f"{MANAGEMENT}ManagementAPIsService")
        for method, fields, code in (
            ("RegisterModel", {"url": "echo.mar"}, "PERMISSION_DENIED"),
            ("UnregisterModel", {"model_name": "obey"}, "PERMISSION_DENIED"),
            ("ScaleWorker", {"model_name": "echo"}, "NOT_FOUND"),
        ):
            request, send = manage(method, **fields), getattr(models, method)
            status, details = ending(lambda send=send, request=request: send(request))
            assert status == code
            assert (details == "Model API disabled") == (code == "PERMISSION_DENIED")


V1 = "/v1/models/whole_body:predict"
BODY = {"instances": [1, 2]}


def test_a_handler_that_reads_the_whole_body(shared_server: Server) -> None:
    """Where bodies are split the answer names the setting, and with the setting the handler runs."""
    shared_server.registered("whole_body.mar")
    failed = shared_server.inference.post(V1, json=BODY)
    shared_server.unregister("whole_body")
    shared_server.registered("whole_body.mar", split_instances="false")

    assert failed.status_code == 500
    assert "split_instances=false" in failed.json()["error"]
    assert shared_server.inference.post(V1, json=BODY).json() == {"predictions": [2, 4]}


def test_torchserves_defaults_change_answers(start_server: StartServer) -> None:
    """With them reasons are kept back, bytes and text have no type (reference 6.4), bodies of V1 and V2 are
    not split, any other body reaches the handler (F10), and probes count as answers (reference 15.3).
    """
    server = start_server(
        "--disable-token-auth",
        enable_model_api="true",
        compat_defaults="torchserve",
        metrics_mode="prometheus",
    )
    server.registered("obey.mar").registered("echo.mar").registered("whole_body.mar")
    answer = server.predict("echo", b"x")
    before = server.metric("Requests2XX")

    assert server.inference.get("/ping").status_code == 200
    # Each look at the metrics is an answer too.
    assert server.metric("Requests2XX") >= before + 2
    assert refused(server) == WITHOUT_REASON
    assert "content-type" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert server.inference.post(V1, json=BODY).json() == {"predictions": [2, 4]}
    for body in (b"", b"not json", b'{"instances": 1}', b'{"inputs": null}'):
        for path in ("/v1/models/echo:predict", "/v2/models/echo/infer"):
            assert server.inference.post(path, content=body).status_code != 400


def packed(name: str, code: str, folder: Path, store: Path) -> str:
    """The name of an archive with this handler."""
    file = folder / f"{name}.py"
    file.write_text(code)
    build_archive(ArchiveConfig(name, str(file), "1.0", export_path=store))
    return f"{name}.mar"


WHOLE_MODEL = """
import os, torch

class Whole:
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        self.model = torch.load(os.path.join(folder, "whole.pt"), map_location="cpu")

    def handle(self, data, context):
        return [self.model(torch.ones(1, 2)).tolist() for _ in data]
"""


@pytest.mark.slow
def test_whole_model_is_refused_with_three_remedies(
    shared_server: Server, model_store: Path, tmp_path: Path
) -> None:
    """``torch.load`` refuses files of ``torch.save(model)`` since 2.6: the error of the registration names
    three remedies, and the one that changes the handler works.
    """
    torch.save(torch.nn.Linear(2, 1), tmp_path / "whole.pt")
    trusting = WHOLE_MODEL.replace('"cpu")', '"cpu", weights_only=False)')
    for name, code in (("refused", WHOLE_MODEL), ("trusting", trusting)):
        (tmp_path / f"{name}.py").write_text(code)
        files = {"serialized_file": tmp_path / "whole.pt", "export_path": model_store}
        build_archive(ArchiveConfig(name, str(tmp_path / f"{name}.py"), "1.0", **files))  # type: ignore[arg-type]
    refused = shared_server.register("refused.mar")

    assert refused.status_code == 500
    document = refused.json()["message"].partition("Hint: since torch 2.6 ")[2]
    for way in ("state_dict()", "weights_only=False", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"):
        assert way in document
    shared_server.registered("trusting.mar")
    assert shared_server.predict("trusting").status_code == 200
    shared_server.unregister("trusting")


ANSWERS_TWICE = """
def handle(data, context):
    return data and [0.5] * 2
"""


def test_a_wrong_number_of_answers(shared_server: Server, model_store: Path, tmp_path: Path) -> None:
    """On each route the answer has the numbers, and what a handler returns."""
    shared_server.registered(packed("answers_twice", ANSWERS_TWICE, tmp_path, model_store))
    rows = [{"name": "x", "datatype": "INT64", "shape": [1], "data": [1]}]
    hint = "Hint: handle must return a list with one answer for each request of the batch"
    document = (
        "size of prediction is not equal to the size of instances: expected 1, the handler returned 2. "
        + hint
    )
    v1 = shared_server.v1("answers_twice", [1])
    v2 = shared_server.inference.post("/v2/models/answers_twice/infer", json={"inputs": rows})

    plain = shared_server.predict("answers_twice", b"1")

    assert (plain.status_code, plain.json()["message"]) == (
        503,
        f"number of batch response mismatched: {document}",
    )
    assert (v1.status_code, v1.json()["error"]) == (500, document)
    assert (v2.status_code, v2.json()["error"]) == (500, document)
    shared_server.unregister("answers_twice")
