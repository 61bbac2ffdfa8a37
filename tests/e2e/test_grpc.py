"""TorchServe's gRPC services, health, reflection, limits and the end of a server (reference 20)."""

import json
import re
import shutil
import threading

import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.e2e.grpc_client import INFERENCE, MANAGEMENT, channel, ending, grpc_server, manage, predict, stub
from tests.e2e.serving import MODEL_CODE, PATIENCE, archived, serving, wait_until

from modelserver.ext.grpc.messages import message

SERVICES = {
    f"{INFERENCE}InferenceAPIsService",
    "inference.GRPCInferenceService",
    "org.pytorch.serve.grpc.openinference.GRPCInferenceService",
    "grpc.health.v1.Health",
    *(REFLECTION := ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """``echo``, ``fields``, ``obey``, ``summing`` with sequences; a queue of 2, messages of 100 000 bytes."""
    home = tmp_path_factory.mktemp("grpc")
    config = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 8\n"
    store = home / "store"
    shutil.copytree(model_store, store)
    archived(store, "summing", MODEL_CODE / "sums.py", config=config)
    with serving(grpc_server(home, store, job_queue_size=2, max_request_size=100000)) as server:
        for name in ("echo", "fields", "obey", "summing"):
            server.registered(f"{name}.mar")
        yield server


@pytest.fixture(scope="module")
def inference(server):
    with channel(server, "inference") as to:
        yield stub(to, f"{INFERENCE}InferenceAPIsService")


@pytest.fixture(scope="module")
def management(server):
    with channel(server, "management") as to:
        yield stub(to, f"{MANAGEMENT}ManagementAPIsService")


def order(do, **fields):
    return predict("obey", body=json.dumps({"do": do, **fields}).encode())


def occupied(server, inference, file):
    """Two calls, until there is the file; whatever comes after them waits in the queue."""
    calls = [inference.Predictions.future(order("wait", file=str(file)))]
    server.wait_busy("obey")
    calls.append(inference.Predictions.future(order("nothing")))
    server.wait_busy("obey", 2)
    return calls


def test_handler_gets_the_fields_of_a_call(server, inference):
    """Bytes under the names of the map, and no headers but their types; a ping returns REST's text."""
    for version in ("", "1.0"):
        answer = inference.Predictions(predict("echo", version, data=b"\xff\x00"))
        assert answer.prediction == b"\xff\x00"
        assert not answer.HasField("status")
    ping = inference.Ping(message("google.protobuf.Empty")())
    assert ping.health == '{\n  "status": "Healthy"\n}'

    server.registered("saw.mar")
    seen = json.loads(inference.Predictions(predict("saw", any=b"{}")).prediction)
    assert seen == {"saw": "{'any': bytearray(b'{}')}"}
    server.unregister("saw")


def test_unknown_models_and_versions_are_internal(server, inference, management):
    """With TorchServe's texts and the known ones; a model without workers is UNAVAILABLE."""
    code, text = ending(lambda: inference.Predictions(predict("no")))
    first, second = text.splitlines()
    assert (code, second) == ("INTERNAL", "org.pytorch.serve.archive.model.ModelNotFoundException")
    assert re.fullmatch(r"Model not found: no\. There are: \w+(, \w+)*( and \d+ more)?", first)
    assert ending(lambda: inference.Predictions(predict("echo", "9"))) == (
        "INTERNAL",
        (
            "Model version: 9 does not exist for model: echo. There is: 1.0\n"
            "org.pytorch.serve.archive.model.ModelVersionNotFoundException"
        ),
    )
    assert ending(lambda: inference.Predictions(predict(""))) == (
        "INTERNAL",
        "Parameter model_name is required.\nBadRequestException.()",
    )
    management.RegisterModel(manage("RegisterModel", url="echo.mar", model_name="idle"))
    for call in (inference.Predictions, inference.StreamPredictions):
        code, text = ending(lambda call=call: list(call(predict("idle"))))
        assert code == "UNAVAILABLE"
        assert text.startswith('Model "idle" has no worker to serve inference request.')
        assert text.endswith("\norg.pytorch.serve.http.ServiceUnavailableException")
    server.unregister("idle")


def test_a_failure_can_be_followed(server, inference):
    """The request's id is in the answer, in the log of models and in that of access."""
    call = inference.Predictions.future(order("raise"), metadata=[("x-request-id", "mine-9")])
    message, kind = call.details().splitlines()

    assert message.startswith("Prediction failed: ValueError: as it was told (obey.py, line ")
    assert message.endswith(" [request mine-9]")
    assert kind == "org.pytorch.serve.http.InternalServerException"
    assert ("x-request-id", "mine-9") in call.trailing_metadata()
    wait_until(lambda: "Failed for request mine-9:" in server.home.log("model_log.log"), "it is in the log")
    line = r"InferenceAPIsService/Predictions HTTP/2\.0\" 14 \d+ mine-9\n"
    wait_until(lambda: re.search(line, server.home.log("access_log.log")), "the call is logged")


@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_who_does_not_wait_leaves_the_queue(server, inference, tmp_path, how):
    """A call that is cancelled, or whose deadline passes, takes its request out of the queue (F33, F37)."""
    names = ("modelserver_cancelled_total", "modelserver_expired_total")
    counted = lambda: sum(server.metric(name, model_name="obey") for name in names)  # noqa: E731
    before = counted()
    running, _ = occupied(server, inference, tmp_path / "over")
    if how == "cancelled":
        call = inference.Predictions.future(order("nothing"))
        server.wait_pending("obey", 1)
        call.cancel()
    while how == "late" and counted() == before:
        # A deadline may pass before the call is sent.
        late = lambda: inference.Predictions(order("nothing"), timeout=0.2)  # noqa: E731
        assert ending(late)[0] == "DEADLINE_EXCEEDED"
    server.wait_pending("obey", 0)

    assert counted() == before + 1
    (tmp_path / "over").touch()
    running.result()


def test_message_above_limit_is_resource_exhausted(inference):
    call = lambda size: inference.Predictions(predict("echo", data=b"x" * size))  # noqa: E731

    assert len(call(90000).prediction) == 90000
    assert ending(lambda: call(100001))[0] == "RESOURCE_EXHAUSTED"


def test_stream_ends_with_its_parts_or_its_failure(inference):
    """Parts are messages, no parts are one; after a failure what came before is there, then the status."""
    answers = inference.StreamPredictions(predict("fields", parts=b"3"))
    assert [answer.prediction for answer in answers] == [b"part 0", b"part 1", b"part 2", b"last"]

    (answer,) = inference.StreamPredictions(predict("fields", b=b"", a=b""))
    assert answer.prediction == b"a,b"

    answers = inference.StreamPredictions(predict("fields", parts=b"1", fail=b""))

    assert next(answers).prediction == b"part 0"
    assert ending(lambda: next(answers))[0] == "UNAVAILABLE"


def test_stream_may_be_left(inference, tmp_path):
    notes = tmp_path / "gone"
    query = predict("fields", endless=str(notes).encode())
    answers = inference.StreamPredictions(query)
    assert next(answers).prediction == b"again"
    answers.cancel()

    wait_until(notes.exists, "the handler is told")


def asking(model, *orders, sequence=None):
    for each in orders:
        query = predict(model, body=json.dumps(each).encode())
        if sequence is not None:
            query.sequence_id = sequence
        yield query


def test_stream_continues_sequences(inference):
    """Requests are steps of the sequence that they name, as responses do. One without a name gets one."""
    steps = [{"add": 1}, {"add": 2}, {"add": 3}]
    answers = list(inference.StreamPredictions2(asking("summing", *steps, sequence="mine")))

    assert [answer.sequence_id for answer in answers] == ["mine"] * 3
    assert [json.loads(answer.prediction)["seen"] for answer in answers] == [[1], [1, 2], [1, 2, 3]]

    (answer,) = inference.StreamPredictions2(asking("summing", {"add": 1}))
    assert answer.sequence_id.startswith("ts-seq-")
    assert json.loads(answer.prediction)["id"] == answer.sequence_id


def test_model_is_managed_with_rests_texts(management):
    answer = management.RegisterModel(
        manage("RegisterModel", url="echo.mar", model_name="m", initial_workers=1, synchronous=True)
    )
    assert answer.msg == 'Model "m" Version: 1.0 registered with 1 initial workers'
    described = management.DescribeModel(manage("DescribeModel", model_name="m")).msg
    assert described.startswith('[\n  {\n    "modelName": "m",\n    "modelVersion": "1.0",')
    assert json.loads(described)[0]["workers"][0]["status"] == "READY"
    scaled = management.ScaleWorker(manage("ScaleWorker", model_name="m", min_worker=2, synchronous=True))
    assert scaled.msg == "Workers scaled to 2 for model: m"
    later = management.ScaleWorker(manage("ScaleWorker", model_name="m"))
    assert later.msg == "Processing worker updates..."
    default = management.SetDefault(manage("SetDefault", model_name="m", model_version="1.0"))
    assert default.msg == 'Default version successfully updated for model "m" to "1.0"'
    gone = management.UnregisterModel(manage("UnregisterModel", model_name="m"))
    assert gone.msg == 'Model "m" unregistered'


def test_registration_lists_and_waits_on_request(server, management):
    """Unlike over REST, a registration waits for workers only if the call asks for it. Without a limit the
    list has 100 (TorchServe's is empty then); pages work as over REST.
    """
    query = manage("RegisterModel", url="echo.mar", model_name="soon", initial_workers=1)

    assert management.RegisterModel(query).msg == "Processing worker updates..."
    server.wait_ready("soon")
    server.unregister("soon")

    names = lambda **query: [  # noqa: E731
        each["modelName"]
        for each in json.loads(management.ListModels(manage("ListModels", **query)).msg)["models"]
    ]

    assert names() == sorted(names())
    assert set(names()) >= {"echo", "fields", "obey", "summing"}
    assert names(limit=1, next_page_token=1) == names()[1:2]


NO_VERSION = "Model version: 0.0 does not exist for model: echo"
BOUNDS = "max_worker cannot be less than min_worker."


@pytest.mark.parametrize(
    ("method", "fields", "code", "text"),
    [
        ("DescribeModel", {"model_name": "no"}, "NOT_FOUND", "Model not found: no"),
        ("DescribeModel", {"model_name": "echo", "model_version": "0.0"}, "NOT_FOUND", NO_VERSION),
        ("ScaleWorker", {"model_name": "echo", "min_worker": 3, "max_worker": 1}, "INVALID_ARGUMENT", BOUNDS),
        ("RegisterModel", {}, "INVALID_ARGUMENT", "Parameter url is required."),
        ("RegisterModel", {"url": "no.mar"}, "NOT_FOUND", "Model not found at: no.mar"),
        ("RegisterModel", {"url": "http://127.0.0.1/m.mar"}, "NOT_FOUND", "Given URL"),
        ("RegisterModel", {"url": "echo.mar"}, "UNKNOWN", "Model version 1.0 is already registered"),
        ("UnregisterModel", {"model_name": "no"}, "NOT_FOUND", "Model not found: no"),
    ],
)
def test_management_errors_have_codes(management, method, fields, code, text):
    """Each error has its code, and TorchServe's class on the second line; allowed_urls is enforced."""
    outcome, details = ending(lambda: getattr(management, method)(manage(method, **fields)))

    assert outcome == code
    assert details.startswith(text)
    assert re.fullmatch(r"org\.pytorch\.serve\.\S+Exception", details.splitlines()[-1])


@pytest.mark.parametrize("number", [-1, 0])
def test_numbers_below_one_are_the_default(server, management, number):
    """A number that is not positive is not given, as in TorchServe: one worker, the default timeout."""
    numbers = {"response_timeout": number, "batch_size": number, "max_batch_delay": number}
    query = manage("RegisterModel", url="echo.mar", model_name="few", initial_workers=number, **numbers)
    registered = management.RegisterModel(query)
    assert registered.msg.startswith('Model "few" Version: 1.0 registered with 0 initial workers')
    document = server.describe("few")
    assert (document["responseTimeout"], document["batchSize"], document["maxBatchDelay"]) == (120, 1, 100)

    scaled = management.ScaleWorker(
        manage("ScaleWorker", model_name="few", min_worker=number, max_worker=number, synchronous=True)
    )
    assert scaled.msg == "Workers scaled to 1 for model: few"
    server.unregister("few")


def test_workers_that_do_not_start_fail_the_call(management):
    """As in TorchServe, a model without its handler is registered, and starting workers is INTERNAL; a
    registration that waits for workers fails with the reason and leaves nothing.
    """
    query = {"url": "echo.mar", "model_name": "handlerless", "handler": "invalidHandler"}
    management.RegisterModel(manage("RegisterModel", **query))
    scale = manage("ScaleWorker", model_name="handlerless", min_worker=1, synchronous=True)

    code, text = ending(lambda: management.ScaleWorker(scale))
    assert code == "INTERNAL"
    assert "invalidHandler" in text
    management.UnregisterModel(manage("UnregisterModel", model_name="handlerless"))

    query = manage("RegisterModel", url="syntax.mar", initial_workers=1, synchronous=True)

    code, text = ending(lambda: management.RegisterModel(query))

    assert code == "INTERNAL"
    assert text.startswith("Failed to start workers for model syntax version: 1.0")
    assert "SyntaxError" in text
    described = manage("DescribeModel", model_name="syntax")
    assert ending(lambda: management.DescribeModel(described))[0] == "NOT_FOUND"


def test_reflection_lists_services_and_messages(server):
    with channel(server, "inference") as to:
        outcome = ProtoReflectionDescriptorDatabase(to)
        assert set(outcome.get_services()) == SERVICES
        pool = DescriptorPool(outcome)
        for name in REFLECTION:
            listing = message(f"{name.rpartition('.')[0]}.ServerReflectionRequest")(list_services="*")
            (response,) = stub(to, name).ServerReflectionInfo(iter([listing]))
            assert {service.name for service in response.list_services_response.service} == SERVICES
        method = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ModelInfer"]
        assert method.input_type.fields_by_name["raw_input_contents"].number == 7
        answer = pool.FindMessageTypeByName(f"{INFERENCE}PredictionResponse")
        assert answer.fields_by_name["status"].number == 3


def test_stopping_server_finishes_accepted_calls(tmp_path, model_store):
    """It finishes accepted calls, ends streams that only wait, and refuses new calls (F49)."""
    with serving(grpc_server(tmp_path, model_store)) as server, channel(server, "inference") as to:
        server.registered("obey.mar")
        inference = stub(to, f"{INFERENCE}InferenceAPIsService")
        watched = stub(to, "grpc.health.v1.Health").Watch(message("grpc.health.v1.HealthCheckRequest")())
        assert next(watched).status == 1
        left = threading.Event()
        idle = inference.StreamPredictions2(iter(left.wait, True))
        running = inference.Predictions.future(order("wait", file=str(tmp_path / "over")))
        server.wait_busy("obey")
        server.terminate()

        assert [state.status for state in watched] == [2]
        assert list(idle) == []
        left.set()
        (tmp_path / "over").touch()
        assert running.result().prediction
        assert server.process.wait(PATIENCE) == 0
        empty = message("google.protobuf.Empty")()
        assert ending(lambda: inference.Ping(empty, timeout=1))[0] == "UNAVAILABLE"
