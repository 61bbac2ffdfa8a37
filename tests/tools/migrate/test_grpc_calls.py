import json
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest
from tests.tools.grpc_mirror import mirroring
from tests.tools.migrate.grpc_player import playing_grpc
from tests.tools.migrate.sites import recorded

from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import StatusCode
from modelserver.tools.grpc_client import CallResult
from modelserver.tools.migrate import grpc_calls
from modelserver.tools.migrate.archives import Archive
from modelserver.tools.migrate.calls import Probe, Response
from modelserver.tools.migrate.comparison import masked, mismatches
from modelserver.tools.migrate.grpc_calls import about, general, send
from modelserver.tools.migrate.requests import NOBODY
from modelserver.tools.migrate.rules import explain
from modelserver.tools.migrate.servers import ComparedServer

ARCHIVE = Archive("m.mar", "m.py")
STREAMING = replace(ARCHIVE, ts_names={"ts.handler_utils.utils.send_intermediate_predict_response": "line 1"})
FAILED = Response(503, "UNAVAILABLE", {}, b"Prediction failed\norg.pytorch.serve.http.X")


@pytest.mark.parametrize(
    ("archive", "method"), [(None, "Predictions"), (ARCHIVE, "Predictions"), (STREAMING, "StreamPredictions")]
)
def test_only_a_handler_that_sends_parts_gets_requests_for_a_stream(archive, method):
    """It gets no other calls: each kind breaks the worker of the other."""
    calls = [call for call in about("m", "1.0", archive, [b"x"]) if call.body]

    assert {call.path.partition("?")[0].rpartition("/")[2] for call in calls} == {method}
    assert [call.path.partition("?")[2] for call in calls] == [
        "model_name=m",
        "model_name=m&model_version=1.0",
        "model_name=m&model_version=0.0.404",
    ]


def test_answers_are_those_of_torchserve():
    """As they were recorded: messages, streams, and refusals with their texts."""
    answers = recorded()
    calls = [*general(NOBODY), *about("parts", "1.0", STREAMING, [b"[[1.0, 2.0]]"])]
    with playing_grpc(answers) as ports:
        got = {call.name: send(call, ("127.0.0.1", ports[f"{call.port}_port"])) for call in calls}

    assert got["Ping (gRPC)"].body == b'{\n  "status": "Healthy"\n}'
    stream = got["StreamPredictions?model_name=parts (gRPC)"]
    assert (stream.status, stream.body, stream.headers) == (200, b"one, two", {"grpc-messages": "2"})
    unknown = got[f"Predictions?model_name={NOBODY} (gRPC)"]
    assert (unknown.status, unknown.reason) == (500, "INTERNAL")
    assert (unknown.body or b"").startswith(b"Model not found: ")
    assert b'"modelName": "parts"' in (got["DescribeModel?model_name=parts (gRPC)"].body or b"")


def test_tokens_are_sent():
    """The one for inference to that port only, as metadata."""
    calls = [call for call in general(NOBODY) if call.path.endswith(("/Ping", "limit=100"))]
    with playing_grpc(recorded(), token="secret") as ports:
        addresses = {call.port: ("127.0.0.1", ports[f"{call.port}_port"]) for call in calls}
        token = ComparedServer("TorchServe", addresses, {"inference": "secret"})
        without = ComparedServer("TorchServe", addresses)

        assert [token.ask(call).reason for call in calls] == ["OK", "OK"]
        assert [without.ask(call).reason for call in calls] == ["UNAUTHENTICATED", "OK"]


def test_missing_and_unreadable_responses_have_status_0(monkeypatch):
    (ping, *_) = general(NOBODY)
    assert send(ping, ("127.0.0.1", 1)) == Response(0, "ConnectionRefusedError", {}, b"")
    for body in (b"\0\0\0\0\x09x", b"\0\0", b"\0\0\0\0\x02\xff\xff", b"\x01\0\0\0\0"):
        replied = AsyncMock(return_value=CallResult(StatusCode.OK, b"", body))
        monkeypatch.setattr(grpc_calls, "send_call", replied)
        assert send(ping, ("127.0.0.1", 1)).status == 0


def test_recorded_messages_become_calls():
    """A message with only known fields and the input ``data`` is reported as these, others as they are."""
    kind = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
    plain = kind(model_name="m", model_version="1.0", input={"data": b"x"})
    two = kind(model_name="m", input={"data": b"x", "more": b"y"})
    tensors = message("inference.ModelInferRequest")(model_name="m", raw_input_contents=[b"x"])
    paths = [f"/{grpc_calls.INFERENCE}/Predictions"] * 2 + [f"/{grpc_calls.OPEN_INFERENCE}/ModelInfer"]
    mark = (("x-mark", "1"),)
    calls = [
        grpc_calls.of_message(path, mark, each.SerializeToString())
        for path, each in zip(paths, (plain, two, tensors), strict=True)
    ]

    assert [(call.path.rpartition("/")[2], call.body == b"x", call.headers) for call in calls] == [
        ("Predictions?model_name=m&model_version=1.0", True, mark),
        ("Predictions", False, (*mark, grpc_calls.MESSAGE)),
        ("ModelInfer", False, (*mark, grpc_calls.MESSAGE)),
    ]
    assert [call.body for call in calls[1:]] == [two.SerializeToString(), tensors.SerializeToString()]


def test_whole_messages_are_sent_as_they_are():
    answer = message("inference.ModelInferResponse")(model_name="m", id="7").SerializeToString()
    request = message("inference.ModelInferRequest")(raw_input_contents=[b"x"]).SerializeToString()
    call = grpc_calls.of_message(f"/{grpc_calls.OPEN_INFERENCE}/ModelInfer", (), request)
    with mirroring(answer=answer) as (mirror, port):
        answered = send(call, ("127.0.0.1", port))

    assert mirror.messages == [request]
    assert (answered.status, json.loads(answered.body or b"")) == (200, {"model_name": "m", "id": "7"})


def test_more_about_a_failure_or_a_model_is_explained():
    call = Probe("", "grpc_inference", grpc_calls.METHOD, f"/{grpc_calls.INFERENCE}/Predictions")
    ours = FAILED.but(body=b"Prediction failed: KeyError [request 1]\norg.pytorch.serve.http.X")

    assert [[rule.name for rule in rules] for rules in explain(call, FAILED, ours)] == [["exposed"]]
    assert explain(call, FAILED, ours.but(body=(ours.body or b"") + b"Y")) == []
    reference = Response(200, "OK", {}, b'[\n  {\n    "modelName": "m"\n  }\n]')
    ours = reference.but(body=b'[\n  {\n    "modelName": "m",\n    "batching": {}\n  }\n]')
    assert mismatches(masked(reference), masked(ours)) == []
