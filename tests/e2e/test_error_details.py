from tests.e2e.grpc_client import INFERENCE, MANAGEMENT, channel, ending, grpc_server, manage, predict, stub
from tests.e2e.serving import serving, wait_until

ORDER = {"do": "raise"}


WITHOUT_REASON = {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}


def refused(server):
    """The response to a request that fails, after the log has its id."""
    answer = server.inference.post("/predictions/obey", json=ORDER, headers={"x-request-id": "mine-8"})
    wait_until(lambda: "Failed for request mine-8:" in server.home.log("model_log.log"), "it is in the log")
    return answer.json()


def test_settings_can_hide_reasons_and_models(tmp_path, model_store):
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


def test_a_handler_that_reads_the_whole_body(shared_server):
    """Where bodies are split the answer names the setting, and with the setting the handler runs."""
    shared_server.registered("whole_body.mar")
    failed = shared_server.inference.post(V1, json=BODY)
    shared_server.unregister("whole_body")
    shared_server.registered("whole_body.mar", split_instances="false")

    assert failed.status_code == 500
    assert "split_instances=false" in failed.json()["error"]
    assert shared_server.inference.post(V1, json=BODY).json() == {"predictions": [2, 4]}


def test_torchserves_defaults_change_answers(start_server):
    """With them reasons are kept back, bytes and text have no type (reference 6.4), bodies of V1 and V2 are
    not split, any other body reaches the handler (F10), and probes count as answers (reference 15.3).
    """
    modes = {"compat_defaults": "torchserve", "metrics_mode": "prometheus"}
    server = start_server("--disable-token-auth", enable_model_api="true", **modes)
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
