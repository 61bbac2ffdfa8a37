import json
import time
from types import SimpleNamespace

import pytest

from modelserver.engine.batching.request import Request
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.wire.messages import Answer, Row
from modelserver.errors import WorkerDied
from modelserver.ext.openai.codec import NAME, PATHS, OpenAI, Rows
from modelserver.ext.openai.meters import LanguageMeters
from modelserver.surface.inference.routes import target_finder
from modelserver.surface.watching import Watcher

EVENTS = "text/event-stream; charset=utf-8"
MODEL = SimpleNamespace(name="m", version="1.0")


class Bench:
    """The metrics of a server with one version, and one request with its watcher."""

    def __init__(self, seconds=0.0):
        self.metrics = ServerMetrics(hostname="h")
        self.metrics.model("m", "1.0")
        self.meters = LanguageMeters(self.metrics)
        self.exchange = SimpleNamespace(watcher=None)
        self.meter = self.meters.watch(self.exchange)
        self.request = Request("r", [Row("r", 0)], [b""], time.monotonic() - seconds)
        self.watcher: Watcher = self.exchange.watcher
        self.watcher.queued(self.request, MODEL)

    def answer(self, **tokens):
        """The handler's answer with what it reports."""
        parameters = json.dumps(tokens).encode() if tokens else b""
        self.request.deliver(0, [(Answer(0, parameters=parameters), b"")])

    def read(self, name):
        """The value of the version's series."""
        start = f'modelserver_{name}{{model_name="m",model_version="1.0"}} '
        lines = b"".join(self.metrics.pieces()).decode().splitlines()
        return float(next(line for line in lines if line.startswith(start)).removeprefix(start))


def test_stream_is_measured():
    """The time to its first part, the mean time between its tokens, and how many there were."""
    bench = Bench(seconds=2)
    bench.watcher.started(200, EVENTS, b"")
    assert bench.read("streams") == 1
    bench.answer(prompt_tokens=5, completion_tokens=3)
    time.sleep(0.02)
    bench.watcher.ended(True)

    assert 2 <= bench.read("first_token_seconds_sum") < 12
    assert bench.read("token_interval_seconds_count") == 1
    assert bench.read("token_interval_seconds_sum") >= 0.01
    assert (bench.read("prompt_tokens_total"), bench.read("completion_tokens_total")) == (5, 3)
    assert (bench.read("streams"), bench.read("streams_aborted_total")) == (0, 0)


@pytest.mark.parametrize("content_type", ["application/json", EVENTS])
def test_whole_answer_counts_its_tokens(content_type):
    """A stream that was over at once had a first token as well."""
    bench = Bench()
    bench.answer(prompt_tokens=5, completion_tokens=3)
    bench.watcher.replied(200, b"", content_type, b"")

    assert (bench.read("prompt_tokens_total"), bench.read("completion_tokens_total")) == (5, 3)
    assert bench.read("first_token_seconds_count") == (content_type == EVENTS)
    assert bench.read("token_interval_seconds_count") == 0


@pytest.mark.parametrize("ending", ["left", "broken off", "ended with an error"])
def test_stream_without_its_end_is_aborted(ending):
    bench = Bench()
    bench.watcher.started(200, EVENTS, b"")
    if ending == "left":
        bench.watcher.left()
    else:
        bench.request.fail(WorkerDied())
        bench.watcher.ended(ending == "ended with an error")

    assert (bench.read("streams"), bench.read("streams_aborted_total")) == (0, 1)
    assert bench.read("completion_tokens_total") == 0


@pytest.mark.parametrize("parameters", [b"", b"{", b'{"prompt_tokens": "many"}'])
def test_handler_that_reports_nothing_has_no_tokens(parameters):
    bench = Bench()
    bench.request.deliver(0, [(Answer(0, parameters=parameters), b"")])
    bench.watcher.replied(200, b"", "application/json", b"")

    assert bench.read("prompt_tokens_total") == 0


def test_versions_that_are_gone_have_no_series():
    bench = Bench()
    bench.metrics.forget("m", "1.0")

    assert b'model_name="m"' not in b"".join(bench.metrics.pieces())


def test_request_that_was_not_queued_is_not_measured():
    bench = Bench()
    bench.watcher.replied(503, b"", "application/json", b"")
    watcher = bench.meters.watch(SimpleNamespace(watcher=None))
    watcher.started(200, EVENTS, b"")
    watcher.ended(True)
    watcher.replied(200, b"", EVENTS, b"")
    watcher.left()

    assert bench.read("streams") == bench.read("first_token_seconds_count") == 0


def test_tokens_of_embeddings_are_those_of_their_rows():
    """The codec reports them when it joins the rows; whoever watched before goes on."""
    bench = Bench()
    codec = OpenAI(RequestLimits(), None, meters=bench.meters)
    target = target_finder([(NAME, PATHS)])(b"/v1/embeddings")
    exchange = SimpleNamespace(target=target, body=b'{"model": "m", "input": ["a", "b"]}', watcher=Watcher())
    pool = SimpleNamespace(dispatch=SimpleNamespace(takes_scopes=False))
    version = SimpleNamespace(name="m", version="1.0", endpoints={"v1/embeddings": True}, pool=pool)
    parsed = codec.read(exchange, version)
    request = Request("r", [Row("r", 0)] * 2, [b""] * 2, time.monotonic())
    exchange.watcher.queued(request, version)
    request.deliver(0, [(Answer(0), b'{"embedding": [1.0], "tokens": 4}')] * 2)
    assert isinstance(parsed, Rows)
    parsed.encode(version, request)
    exchange.watcher.replied(200, b"", "application/json", b"")

    assert bench.read("prompt_tokens_total") == 8
