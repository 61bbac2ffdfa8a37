import asyncio
from types import SimpleNamespace

import pytest

from modelserver.errors import BadRequest, Conflict
from modelserver.ext.recording import recorder as module
from modelserver.ext.recording.entries import Call, Ended, Frames, Lost, unpack
from modelserver.ext.recording.recorder import Recorder, RecordingOptions
from modelserver.surface.http.exchange import Target
from modelserver.surface.http.outgoing import Outgoing
from modelserver.surface.inference.routes import Route

HEADERS = [(b"Content-Type", b"text/plain"), (b"Authorization", b"Bearer x"), (b"X-Mark", b"7")]
TIMING_LINES = b"x-batch-id: b\r\nx-batch-size: 1\r\nserver-timing: queue;dur=1.0, inference;dur=2.0"
EXTRA = TIMING_LINES + b"\r\nset-cookie: secret\r\n"


def inner(model="m", body=b"question"):
    path = f"/predictions/{model}"
    target = Target(path, b"", path, Route(model, None))
    exchange = SimpleNamespace(target=target, method=b"POST", headers=HEADERS, body=body, watcher=None)
    exchange.is_rpc, exchange.framed = False, bytes
    return exchange


def taken(recording):
    async def take():
        frames = Frames()
        return [
            e async for data in recording.frames() for content in frames.feed(data) for e in unpack(content)
        ]

    return take()


def started(**options):
    recorder = Recorder()
    return recorder, recorder.start(RecordingOptions(**options))


class Routes:
    """Routes that answer as ``serve`` does, watched by the recorder."""

    def __init__(self, recorder, serve):
        self._recorder = recorder
        self._serve = serve

    def serve(self, exchange):
        exchange.watcher = self._recorder.watch(exchange)
        self._serve(exchange)


def answering(recorder, answer=b"a"):
    return Routes(recorder, lambda exchange: exchange.watcher.replied(200, answer, "", b""))


def test_without_a_recording_nothing_is_watched():
    recorder = Recorder()
    before = recorder.watch(inner())
    recorder.start(RecordingOptions(models=frozenset({"other"})))

    assert (before, recorder.watch(inner())) == (None, None)


async def test_an_answer_is_recorded():
    ticks = iter([0, 1000, 5000])
    recorder = Recorder(lambda: next(ticks))

    def serve(exchange):
        exchange.body = b"inflated"
        exchange.watcher.queued(None, None)
        exchange.watcher.replied(200, b"answer", "text/plain", EXTRA)

    recording = recorder.start(RecordingOptions(headers=("x-mark",), requests=1))
    hot = Routes(recorder, serve)
    hot.serve(inner())
    assert not recording.accepts("m")
    began, call, ended = await taken(recording)

    assert began.models == []
    assert "x-mark" in began.headers
    assert call == Call(
        1,
        1000,
        4000,
        b"POST",
        "/predictions/m",
        "m",
        None,
        [HEADERS[0], HEADERS[2]],
        b"question",
        200,
        "text/plain",
        TIMING_LINES,
        b"answer",
        0,
        True,
    )
    assert ended == Ended("the limit of 1 was reached")


@pytest.mark.parametrize(
    ("models", "recorded"),
    [
        ((), [("m", b"a"), ("other", b"b"), ("m", b"refused"), (None, b"refused")]),
        (("m",), [("m", b"a"), ("m", b"refused")]),
    ],
)
async def test_request_without_a_model_in_its_path_is_recorded(models, recorded):
    """It is known when the body has been read, or when the request is queued."""
    recorder, recording = started(models=frozenset(models), requests=len(recorded))
    exchanges = [inner("", body=b"compressed") for _ in range(4)]
    for each in exchanges:
        Routes(recorder, id).serve(each)
    for each, name, answer in ((exchanges[0], "m", b"a"), (exchanges[1], "other", b"b")):
        each.watcher.queued(None, SimpleNamespace(name=name))
        each.watcher.started(200, "", b"")
        each.watcher.part(answer)
        each.watcher.ended(True)
    exchanges[2].target = inner("m").target
    for each in exchanges[2:]:
        each.watcher.replied(404, b"refused", "", b"")
    _, *calls, _ = await taken(recording)

    assert [(call.model, call.answer) for call in calls] == recorded
    assert {call.body for call in calls} == {b"compressed"}


async def test_streams_failures_and_clients_that_leave_are_recorded():
    recorder, recording = started(requests=5)
    exchanges = []
    hot = Routes(recorder, exchanges.append)
    for _ in range(5):
        hot.serve(inner())
    whole, broken, gone, halfway, refused = (exchange.watcher for exchange in exchanges)
    for each in (whole, broken, halfway):
        each.started(200, "text/plain", b"")
        each.part(b"one")
        each.part(b"two")
    whole.ended(True)
    broken.ended(False)
    gone.left()
    halfway.left()
    refused.replied(503, b"no", "", b"x-batch-id: b\r\nx-batch-size: 2\r\nset-cookie: s\r\n")
    _, *calls, _ = await taken(recording)

    assert [(c.status, c.answer, c.parts, c.complete) for c in calls] == [
        (200, b"onetwo", 2, True),
        (200, b"onetwo", 2, False),
        (0, b"", 0, True),
        (200, b"onetwo", 2, False),
        (503, b"no", 0, True),
    ]
    assert calls[4].lines == b"x-batch-id: b\r\nx-batch-size: 2"


async def test_headers_and_queries_count(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 10_000)
    recorder, recording = started()
    hot = answering(recorder)
    for _ in range(20):
        request = inner()
        request.headers = [(b"content-type", b"x" * 1000)]
        hot.serve(request)
    recorder.close()
    _, lost, *calls, _ = await taken(recording)

    assert lost.full + len(calls) == 20
    assert len(calls) < 11


async def test_memory_is_bounded_while_the_client_does_not_read(monkeypatch):
    monkeypatch.setattr(module, "MOST_CALLS", 2)
    monkeypatch.setattr(module, "LARGEST", 100)
    recorder, recording = started()
    hot = answering(recorder)
    for _ in range(5):
        hot.serve(inner())
    hot.serve(inner(body=b"x" * 200))
    endless = []
    Routes(recorder, endless.append).serve(inner())
    endless[0].watcher.started(200, "", b"")
    for _ in range(5):
        endless[0].watcher.part(b"x" * 50)
    endless[0].watcher.ended(True)
    recorder.close()
    _, lost, *calls, ended = await taken(recording)

    assert lost == Lost(full=3, large=2)
    assert len(calls) == 2
    assert ended == Ended("the server stopped")


async def test_held_parts_count(monkeypatch):
    """Parts count toward the limit until their response ends or is too large; later responses are lost."""
    monkeypatch.setattr(module, "MOST_BYTES", 2000)
    monkeypatch.setattr(module, "LARGEST", 800)
    recorder, recording = started()
    exchanges = []
    hot = Routes(recorder, exchanges.append)
    for _ in range(6):
        hot.serve(inner(body=b""))
    large, small, broken, *others = (exchange.watcher for exchange in exchanges)
    for each in (large, small, broken, *others):
        each.started(200, "", b"")
    for each in (large, small, broken):
        each.part(b"x" * 500)
    assert recording._bytes == 1500
    for each in others:
        each.part(b"x" * 700)
        each.part(b"x")
    assert recording._bytes == 1500
    large.part(b"x" * 500)
    assert recording._bytes == 1000

    small.ended(True)
    for each in (large, broken, *others):
        each.left()
    recorder.close()
    _, lost, *calls, _ = await taken(recording)
    assert lost == Lost(full=3, large=1)
    assert [(len(call.answer), call.complete) for call in calls] == [(500, True), (500, False)]
    assert recording._bytes == 0


async def test_parts_are_dropped_after_the_recording():
    recorder, recording = started()
    exchanges = []
    Routes(recorder, exchanges.append).serve(inner())
    watcher = exchanges[0].watcher
    watcher.started(200, "", b"")
    watcher.part(b"one")
    recording.close()
    watcher.part(b"two")

    assert recording._bytes == 0
    watcher.ended(True)
    assert recording._pending == 0


async def test_many_requests_are_encoded_in_pieces(monkeypatch):
    """No frame is much larger than a piece, so that the event loop is not held up; none is lost."""
    monkeypatch.setattr(module, "_PIECE", 1000)
    recorder, recording = started(requests=20)
    hot = answering(recorder, b"a" * 300)
    for _ in range(20):
        hot.serve(inner())
    frames = [unpack(content) async for data in recording.frames() for content in Frames().feed(data)]

    assert max(len(entries) for entries in frames) <= 4
    assert sum(isinstance(e, Call) for entries in frames for e in entries) == 20


async def test_a_recording_ends_in_time():
    recorder, recording = started(seconds=0.01)
    exchanges = []
    Routes(recorder, exchanges.append).serve(inner())
    taking = asyncio.create_task(taken(recording))
    await asyncio.sleep(0.15)
    assert not taking.done()
    exchanges[0].watcher.replied(200, b"late", "", b"")
    *_, call, ended = await taking

    assert call.answer == b"late"
    assert ended == Ended("0.01 seconds are over")


def test_one_client_records_a_share():
    recorder, recording = started()
    with pytest.raises(Conflict):
        recorder.start(RecordingOptions())
    recording.close()

    assert recorder.start(RecordingOptions()) is recorder.now

    recording = Recorder().start(RecordingOptions(sample=0.2))

    assert 100 < sum(recording.accepts("m") for _ in range(1000)) < 300


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample": 0},
        {"sample": float("nan")},
        {"seconds": -1},
        {"requests": 0},
        {"headers": ("cookie",)},
        {"headers": ("x-api-key",)},
        {"headers": ("a b",)},
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(BadRequest):
        RecordingOptions(**wrong)


async def test_a_recording_counts_as_outgoing():
    outgoing = Outgoing(4000)
    recorder = Recorder(count=outgoing.add, most=outgoing.limit // 4)
    recording = recorder.start(RecordingOptions())
    hot = answering(recorder, b"a" * 300)
    for _ in range(5):
        hot.serve(inner())
    assert 600 < outgoing.held <= 1000
    recorder.close()
    _, lost, *calls, _ = await taken(recording)
    assert lost.full + len(calls) == 5
    assert outgoing.held == 0
    recording.hold(500)
    recording.close()
    recording.count(-500)
    assert outgoing.held == 0
