from types import SimpleNamespace

import pytest
from tests.ext.grpc.calling import FakeCall

from modelserver.errors import ServiceUnavailable
from modelserver.ext.grpc.framing import message_framed
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import prediction_status
from modelserver.ext.grpc.watching import WatchedRequest
from modelserver.ext.recording.entries import Call, Frames, code_of, unpack
from modelserver.ext.recording.recorder import Recorder, RecordingOptions

PATH = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
REQUEST = SimpleNamespace(batch_id="b", batch_size=2, queued=0.001, handler_time=0.002)
_Request = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Answer = message("org.pytorch.serve.grpc.inference.PredictionResponse")


@pytest.fixture
def recorder():
    """Nobody records yet."""
    return Recorder()


def begin(recorder, method="Predictions", model="m", **call):
    request = _Request(model_name=model, input={"data": b"x"})
    return WatchedRequest(recorder.watch, PATH + method, request, FakeCall(**call), prediction_status)


async def taken(recording):
    recording.finish("over")
    frames = Frames()
    entries = [
        entry async for data in recording.frames() for each in frames.feed(data) for entry in unpack(each)
    ]
    return entries[1:-1]


async def test_a_call_is_recorded_whole(recorder):
    """With its message, the headers that are recorded, its code, batch and times."""
    recording = recorder.start(RecordingOptions(headers=("x-mark",)))
    metadata = (("x-mark", "1"), ("authorization", "secret"))
    with begin(recorder, metadata=metadata, timeout=2.0) as watched:
        watched.queued(REQUEST, None)
        watched.answered(answer := _Answer(prediction=b"y"), REQUEST)
    (call,) = await taken(recording)

    assert isinstance(call, Call)
    assert (call.method, call.target, call.model, call.version) == (b"gRPC", f"{PATH}Predictions", "m", None)
    assert call.headers == [(b"x-mark", b"1"), (b"grpc-timeout", b"2000m")]
    assert _Request.FromString(call.body).input["data"] == b"x"
    assert (call.number, call.status, code_of(call.lines)) == (1, 200, 0)
    assert call.answer == message_framed(answer.SerializeToString())
    assert (call.batch, call.batch_size, call.timing) == ("b", 2, (1.0, 2.0))
    assert (call.parts, call.complete) == (0, True)


async def test_ends_of_all_kinds_are_recorded(recorder):
    recording = recorder.start(RecordingOptions())
    part = _Answer(prediction=b"p")
    with begin(recorder, "StreamPredictions2") as watched:
        watched.part(part)
        watched.part(part)
        watched.answered(None, REQUEST)
    with pytest.raises(ServiceUnavailable), begin(recorder):
        raise ServiceUnavailable("later")
    broken_off = begin(recorder, "StreamPredictions")
    broken_off.queued(REQUEST, None)
    broken_off.part(part)
    with pytest.raises(ServiceUnavailable), broken_off:
        raise ServiceUnavailable("later")
    with pytest.raises(GeneratorExit), begin(recorder):
        raise GeneratorExit
    stream, failed, broken, left = await taken(recording)

    assert stream.target.endswith("/StreamPredictions")
    assert (stream.answer, stream.parts) == (message_framed(part.SerializeToString()) * 2, 2)
    assert (failed.status, code_of(failed.lines), failed.batch, failed.complete) == (503, 14, "", True)
    assert failed.answer.startswith(b"later\n")
    assert (broken.status, broken.batch, broken.complete) == (503, "b", False)
    assert (left.status, left.answer, left.complete) == (0, b"", False)
