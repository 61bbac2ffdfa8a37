import gzip
import json
import re

import pytest
from tests.e2e.grpc_client import INFERENCE, PATIENCE, channel, grpc_settings, oip, predict, stub
from tests.e2e.serving import Home, Server, serving, wait_until

from modelserver.ext.grpc.messages import message

REQUEST = "org.kubeflow.serving.inference.request"
RESPONSE = "org.kubeflow.serving.inference.response"
SECRET = "Bearer very-secret"


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store, sink):
    """Two front ends, gRPC, the agent's flags and variables, and models of each kind."""
    variables = {"MODELSERVER_INFERENCE_SERVICE": "digits", "MODELSERVER_NAMESPACE": "research"}
    home = Home(tmp_path_factory.mktemp("payloads"), variables)
    flags = ("--log-url", sink.url, "--source-uri", "pod-1", "--metadata-headers", "X-Request-Id,X-Mark")
    bounds = {"payload_log_max_body": 200000, "max_request_size": 1000000, "job_queue_size": 2}
    settings = {**grpc_settings(), **bounds, "frontend_processes": 2}
    with serving(Server(home, model_store, flags, settings)) as made:
        for name in ("echo", "mirror", "obey"):
            made.registered(f"{name}.mar")
        made.registered("rows.mar", batch_size=4, batch_policy="greedy")
        made.registered("chatty.mar")
        yield made


@pytest.fixture(scope="module")
def services(server):
    with channel(server, "inference") as to:
        yield stub(to, f"{INFERENCE}InferenceAPIsService"), stub(to, "inference.GRPCInferenceService")


def pair(sink, identity):
    """The events of a call that named itself, request and answer."""
    result = {event.heads["ce-type"]: event for event in sink.wait(2, id=identity)}
    return result[REQUEST], result[RESPONSE]


def settled(server):
    wait_until(lambda: server.metric("modelserver_payload_events_waiting") == 0, "nothing waits")


def test_predictions_are_logged(server, sink):
    """Events have the unchanged bodies, KServe's attributes, and of headers only those of the setting."""
    answer = server.predict(
        "echo",
        b"\x00\xff",
        headers={"ce-id": "p", "x-mark": "m", "authorization": SECRET, "content-type": "image/png"},
        params={"key": SECRET},
    )
    assert answer.content == b"\x00\xff"
    request, response = pair(sink, "p")

    assert (request.body, response.body) == (b"\x00\xff", b"\x00\xff")
    assert request.heads["content-type"] == "image/png"
    expected = {"ce-specversion": "1.0", "ce-source": "pod-1", "ce-metadata": '{"X-Mark":["m"]}'}
    expected |= {"ce-inferenceservicename": "digits", "ce-namespace": "research"}
    expected |= {"ce-modelname": "echo", "ce-path": "/predictions/echo"}
    for event in (request, response):
        assert expected.items() <= event.heads.items()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event.heads["ce-time"])
        assert "secret" not in str(event.heads)
    assert response.heads["ce-batchid"] == answer.headers["x-batch-id"]
    assert request.heads["ce-time"] < response.heads["ce-time"] <= response.heads["ce-recordedtime"]
    settled(server)
    assert server.metric("modelserver_payload_events_total", outcome="sent") >= 2


def test_v1_and_v2_are_logged(server, sink):
    """Requests of one batch have separate events with its batchId; bodies are uncompressed."""
    body = json.dumps({"instances": [1, 2]}).encode()
    packed = {"ce-id": "v1", "content-encoding": "gzip"}
    server.inference.post("/v1/models/rows:predict", content=gzip.compress(body), headers=packed)
    request, response = pair(sink, "v1")
    assert (request.body, request.heads["content-type"]) == (body, "application/json")
    text = json.loads(response.body)
    assert (text["predictions"], text["batchId"]) == ([2, 4], response.heads["ce-batchid"])

    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}
    server.inference.post("/v2/models/mirror/infer", json={"inputs": [tensor]}, headers={"ce-id": "v2"})
    request, response = pair(sink, "v2")
    assert json.loads(request.body)["inputs"] == [tensor]
    assert json.loads(response.body)["outputs"][0]["data"] == [0.5]

    body = gzip.compress(json.dumps({"model": "rows:1.0", "input": "a"}).encode())
    server.inference.post("/v1/embeddings", content=body, headers={**packed, "ce-id": "openai"})
    (request,) = sink.wait(1, id="openai")
    assert (request.heads["ce-modelname"], request.heads["ce-modelversion"]) == ("rows", "1.0")


@pytest.mark.parametrize("more", [{}, {"stream": True}])
@pytest.mark.parametrize("path", ["/v1", "/predictions/chatty/1.0/v1"])
def test_chats_are_logged(server, sink, path, more):
    """With the model and the version of the body; a stream is one event. So it is in the access log."""
    identity = f"chat{path.replace('/', '-')}{len(more)}"
    body = {"model": "chatty:1.0", "messages": [{"role": "user", "content": "count 2"}], **more}
    path = f"{path}/chat/completions"
    answer = server.inference.post(f"{path}?{identity}", json=body, headers={"ce-id": identity})
    request, response = pair(sink, identity)
    expected = {"ce-modelname": "chatty", "ce-modelversion": "1.0", "ce-path": path}

    assert (json.loads(request.body), response.body) == (body, answer.content)
    assert b'"content":"0 ' in response.body
    assert response.heads["content-type"] == answer.headers["content-type"]
    assert all(expected.items() <= event.heads.items() for event in (request, response))
    server.home.wait_for_log(f'"POST {path}?{identity} HTTP/1.1" 200 ', "access_log.log")


def test_errors_and_other_paths_are_not_logged(server, sink):
    """A request that fails is logged without its error; requests to paths besides inference are not."""
    failed = server.predict("obey", {"do": "raise"}, headers={"ce-id": "failed"})
    unknown = server.predict("nothing", b"x", headers={"ce-id": "unknown"})
    server.predict("echo", b"x", headers={"ce-id": "after"})
    pair(sink, "after")

    assert (failed.status_code, unknown.status_code) == (503, 404)
    settled(server)
    assert [event.kind for event in sink.of(id="failed")] == ["request"]
    assert [event.kind for event in sink.of(id="unknown")] == ["request"]

    settled(server)
    before = len(sink.events)
    for path in ("/ping", "/v2/health/ready", "/v1/models", "/v1/models/rows"):
        assert server.inference.get(path).status_code == 200
    server.predict("echo", b"x", headers={"ce-id": "last"})
    pair(sink, "last")

    assert len(sink.events) == before + 2


def test_grpc_messages_are_logged(server, sink, services):
    """The bodies are the messages, and the content types name their types."""
    torchserve, open_inference = services
    metadata = (("ce-id", "grpc"), ("x-mark", "g"), ("authorization", SECRET))
    sent_message = predict("echo", data=b"\xff")
    torchserve.Predictions(sent_message, timeout=PATIENCE, metadata=metadata)
    request, response = pair(sink, "grpc")
    assert request.heads["content-type"] == f"application/protobuf; proto={INFERENCE}PredictionsRequest"
    assert type(sent_message).FromString(request.body) == sent_message
    assert message(f"{INFERENCE}PredictionResponse").FromString(response.body).prediction == b"\xff"
    assert request.heads["ce-metadata"] == '{"X-Mark":["g"]}'
    assert request.heads["ce-path"] == f"/{INFERENCE}InferenceAPIsService/Predictions"
    assert "secret" not in str(request.heads)

    tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"[1]"]}}
    sent_message = oip("ModelInferRequest", model_name="rows", inputs=[tensor])
    answer = open_inference.ModelInfer(sent_message, timeout=PATIENCE, metadata=(("ce-id", "oip"),))
    request, response = pair(sink, "oip")
    assert type(sent_message).FromString(request.body) == sent_message
    assert type(answer).FromString(response.body) == answer
    assert response.heads["ce-batchid"] == answer.parameters["batchId"].string_param
