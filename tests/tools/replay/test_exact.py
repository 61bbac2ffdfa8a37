import json

import pytest
from tests.e2e.conftest import MODEL_CODE

from modelserver.errors import ConfigError
from modelserver.ext.grpc.messages import message
from modelserver.ext.recording.entries import code_of
from modelserver.models.settings.load import load_settings
from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.grpc_client import messages_of
from modelserver.tools.replay.exact import RecordedBatch, Replayed, archive_of, batches_of, replay_exactly
from modelserver.tools.replay.sender import TimedResponse


def heads(batch, size):
    return b"x-batch-id: %b\r\nx-batch-size: %d\r\nserver-timing: queue;dur=1" % (batch.encode(), size)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A model store with these models."""
    store = tmp_path_factory.mktemp("store")
    for name in ("fields", "mirror", "neighbours", "rows"):
        build_archive(ArchiveConfig(name, str(MODEL_CODE / f"{name}.py"), "1.0", export_path=store))
    return store


@pytest.fixture
def settings_of(store, tmp_path):
    return lambda **flags: load_settings({"model_store": str(store), **flags}, {}, tmp_path)


@pytest.fixture
def queued_call(make_call):
    def make(number, body, batch, size, model="neighbours", **changes):
        rest = {"target": f"/predictions/{model}", "headers": [(b"content-type", b"application/json")]}
        lines = heads(batch, size) if batch else b""
        return make_call(number=number, model=model, body=body, lines=lines, **rest | changes)

    return make


def test_batches_are_ordered_as_they_were_queued(make_call):
    """In the order of the queue, as are the calls of each; not those of calls that tell none."""
    lines = {4: heads("b", 2), 1: heads("a", 2), 3: b"", 2: heads("b", 2)}
    result = batches_of([make_call(number=number, lines=each) for number, each in lines.items()])

    assert [[call.number for call in batch.calls] for batch in result] == [[1], [2, 4]]


@pytest.mark.parametrize(
    ("answers", "difference"),
    [
        ([heads("x", 2), heads("x", 2)], ""),
        ([heads("x", 1), heads("y", 1)], "2 batches, of 1 and 1"),
        ([heads("x", 3), heads("x", 3)], "one of 3"),
        ([b"", b""], "none"),
    ],
)
def test_batch_difference_is_described(make_call, answers, difference):
    sent = [TimedResponse(0, 0, 200, lines) for lines in answers]
    batch = RecordedBatch(2, [make_call(), make_call()], sent)
    replayed = Replayed([batch], 1)

    assert batch.difference == difference
    assert replayed.exact is not difference
    assert replayed.lines()[0] == f"{0 if difference else 1} of 1 batches are the recorded ones."
    assert any(f"a batch of 2 became {difference}" in line for line in replayed.lines()) is bool(difference)
    assert replayed.lines()[-1] == "Requests that were in no batch, and are not sent: 1."


async def test_archive_is_taken_from_settings_or_store(settings_of):
    plain = settings_of().settings
    named = settings_of(load_models="other=rows.mar").settings

    assert (await archive_of("rows", plain)).url == "rows.mar"
    other = await archive_of("other", named)
    assert (other.url, other.model_name) == ("rows.mar", "other")
    assert (await archive_of(None, named)).model_name == "other"
    with pytest.raises(ConfigError, match="--models gone=ARCHIVE"):
        await archive_of("gone", plain)
    with pytest.raises(ConfigError, match="name no model"):
        await archive_of(None, plain)


def test_batches_are_sent_as_they_were(settings_of, queued_call):
    large, timeout = "x" * (1 << 20), [(b"x-request-timeout-ms", b"1")]
    instances = json.dumps({"instances": [1, large]}).encode()
    calls = [
        queued_call(5, b"3", "b", 3),
        queued_call(2, b"7", "a", 1),
        queued_call(3, b"-3", "b", 3),
        queued_call(4, b"5", "b", 3),
        queued_call(6, instances, "c", 3, "rows", target="/v1/models/rows:predict", headers=timeout),
        queued_call(7, b"4", "c", 3, "rows"),
        queued_call(8, b"9", "", 0),
    ]
    replayed = replay_exactly(calls, settings_of())

    assert replayed.exact
    assert replayed.left_out == 1
    bodies = [[answer.body for answer in batch.answers] for batch in replayed.batches[:2]]
    assert bodies == [[b"7"], [b"0", b"5", b"0"]]
    first, second = replayed.batches[2].answers
    assert json.loads(first.body)["predictions"] == [2, large]
    assert second.body == b"8"


def test_a_batch_that_ends_its_worker(tmp_path, queued_call):
    crashing = tmp_path / "crashing.py"
    crashing.write_text(
        "import os\n\ndef handle(data, context):\n"
        "    rows = [row['body'] for row in data or ()]\n"
        "    if {7, 13} <= {*rows}:\n        os._exit(3)\n    return rows\n"
    )
    build_archive(ArchiveConfig("crashing", str(crashing), "1.0", export_path=tmp_path))
    calls = [
        queued_call(i, body, batch, 2, "crashing")
        for i, (body, batch) in enumerate([(b"7", "a"), (b"13", "a"), (b"7", "b"), (b"8", "b")])
    ]
    replayed = replay_exactly(calls, load_settings({"model_store": str(tmp_path)}, {}, tmp_path))

    assert replayed.exact
    assert [[each.status for each in batch.answers] for batch in replayed.batches] == [[500, 500], [200, 200]]


PREDICT = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
INFER = "/inference.GRPCInferenceService/ModelInfer"
_Predicted = message("org.pytorch.serve.grpc.inference.PredictionResponse")
_Inferred = message("inference.ModelInferResponse")


def predict(model, **data):
    request = message("org.pytorch.serve.grpc.inference.PredictionsRequest")(model_name=model, input=data)
    return request.SerializeToString()


def test_batches_that_cannot_be_made_again_are_reported(tmp_path, settings_of, queued_call):
    """So is the error of a model that does not load."""
    replayed = replay_exactly([queued_call(1, b"1", "a", 4)], settings_of())
    assert not replayed.exact
    assert "a batch of 4 became one of 1" in replayed.lines()[1]
    assert "what the sample left out" in replayed.lines()[2]
    assert replayed.batches[0].answers[0].body == b"1"

    broken = tmp_path / "broken.py"
    broken.write_text("def handle(data, context)\n    return data\n")
    build_archive(ArchiveConfig("broken", str(broken), "1.0", export_path=tmp_path))
    loaded = load_settings({"model_store": str(tmp_path)}, {}, tmp_path)
    with pytest.raises(ConfigError, match=r"broken.mar cannot be loaded: .*SyntaxError"):
        replay_exactly([queued_call(1, b"1", "a", 1, "broken")], loaded)


def test_calls_of_each_method_are_replayed(settings_of, queued_call):
    tensors = message("inference.ModelInferRequest")(model_name="mirror", raw_input_contents=[bytes(8)])
    tensors.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request = [
        ("mirror", f"{PREDICT}Predictions", predict("mirror", data=b"x")),
        ("mirror", INFER, tensors.SerializeToString()),
        ("mirror", f"{PREDICT}Predictions", b"\xff"),
        ("fields", f"{PREDICT}StreamPredictions", predict("fields", parts=b"2")),
        ("fields", f"{PREDICT}StreamPredictions", predict("fields", parts=b"1", fail=b"")),
    ]
    calls = [
        queued_call(number, body, str(number), 1, model, method=b"gRPC", target=target, headers=[])
        for number, (model, target, body) in enumerate(request)
    ]
    replayed = replay_exactly(calls, settings_of())
    answers = [answer for batch in replayed.batches for answer in batch.answers]
    predicted, inferred, unread, stream, broken = answers

    assert [_Predicted.FromString(each).prediction for each in messages_of(predicted.body)] == [b"x"]
    assert [_Inferred.FromString(each).outputs[0].shape for each in messages_of(inferred.body)] == [[1, 2]]
    assert [len(list(messages_of(each.body))) for each in (predicted, inferred, stream)] == [1, 1, 3]
    assert [code_of(each.lines) for each in answers] == [0, 0, 13, 0, 14]
    assert (unread.status, broken.status) == (500, 0)
    assert [not batch.difference for batch in replayed.batches] == [True, True, False, True, True]
