"""Spans of workers that call their handlers in different ways, on the server's machine and on others."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.elsewhere import elsewhere
from tests.e2e.serving import archived
from tests.ext.otel.collector import collector, environment

pytestmark = pytest.mark.slow

_REST = "POST /predictions/{name}"
_HEAD = """
import asyncio
import time

from opentelemetry import trace

import modelserver
from modelserver_handlers.context import record_phases

tracer = trace.get_tracer(__name__)
"""
_PIPELINED = """
class Model(modelserver.Handler):
    pipelined = True

    def prepare(self, row: dict) -> dict:
        with tracer.start_as_current_span("own preparation"):
            time.sleep(0.002)
        return row

    def predict(self, rows: list[dict]) -> list[dict]:
        with tracer.start_as_current_span("own"):
            time.sleep(0.002)
        return [len(rows) for _ in rows]
"""
# Both calls wait for each other, so each runs while the other one's span is current.
_ASYNCHRONOUS = """
class Model:
    async def initialize(self, context):
        self.came = 0
        self.met = asyncio.Event()

    async def handle(self, data, context):
        self.came += 1
        if self.came == 2:
            self.met.set()
        with tracer.start_as_current_span("own"):
            await self.met.wait()
            with tracer.start_as_current_span("deeper"):
                await asyncio.sleep(0.002)
        record_phases(context, 0.001, 0.002, 0.0)
        return [len(data)]
"""
# Goes on until there are two requests.
_CONTINUOUS = """
class Model:
    def handle(self, data, context):
        count = len(data)
        with tracer.start_as_current_span("own") as span:
            span.set_attribute("rows", count)
            time.sleep(0.02)
        record_phases(context, 0.0, 0.02, 0.0)
        context.stopping_criteria = [lambda answer: count == 2] * count
        return [str(count)] * count
"""
_MODELS = {
    "pipelined": (_PIPELINED, "batchSize: 2\nbatchPolicy: window\nmaxBatchDelay: 10000\n"),
    "asynchronous": (_ASYNCHRONOUS, "asyncCommunication: true\nbatchSize: 1\n"),
    "continuous": (_CONTINUOUS, "continuousBatching: true\nbatchSize: 2\n"),
}
_WHERE = {"here": "resources: local\n", "elsewhere": ""}


@pytest.fixture(scope="module")
def at():
    with collector() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory, at):
    folder = tmp_path_factory.mktemp("t")
    store = folder / "store"
    for name, (code, config) in _MODELS.items():
        for where, placed in _WHERE.items():
            archived(store, f"{name}-{where}", _HEAD + code, config=config + placed)
    with elsewhere(folder, store, environment(at), otel="traces") as one:
        yield one


def spans_of_two(server, at, model, first):
    """Sends two requests at the same time, each with its own trace; returns the spans of each by name."""
    ids = [f"{number:032x}" for number in (first, first + 1)]
    server.registered(f"{model}.mar")
    with ThreadPoolExecutor(2) as both:
        heads = [{"traceparent": f"00-{each}-00f067aa0ba902b7-01"} for each in ids]
        answers = list(both.map(lambda head: server.predict(model, {}, headers=head), heads))
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    server.unregister(model)
    at.wait(lambda: all(_ended(at.of(each)) for each in ids), "the requests")
    result = []
    for each in ids:
        by_name = {}
        for span in at.of(each):
            by_name.setdefault(span.name, []).append(span)
        result.append(by_name)
    return result


def _ended(spans):
    return any(span.name == _REST for span in spans)


def only(spans, name):
    (result,) = spans[name]
    return result


@pytest.mark.parametrize("where", _WHERE)
def test_spans_of_prepare_are_below_the_handler(server, at, where):
    """Also those that `prepare` opens in its thread; the batch is linked to all requests."""
    spans = spans_of_two(server, at, f"pipelined-{where}", 1 if where == "here" else 3)
    (batched,) = [each for each in spans if "batch" in each]
    (other,) = [each for each in spans if "batch" not in each]
    batch, handler = only(batched, "batch"), only(batched, "handler")
    worker = at.trace(batch.trace_id, "own preparation", "own preparation", "own")
    assert {each.parent_id for each in worker if each.name.startswith("own")} == {handler.span_id}
    requests = [only(each, _REST) for each in spans]
    assert set(batch.links) == {(each.trace_id, each.span_id) for each in requests}
    assert only(other, _REST).links == [(batch.trace_id, batch.span_id)]
    assert handler.parent_id == batch.span_id
    prepare, infer = only(batched, "preprocess"), only(batched, "inference")
    assert {prepare.parent_id, infer.parent_id} == {handler.span_id}
    assert prepare.end - prepare.start >= 4_000_000
    assert infer.end - infer.start >= 2_000_000


def test_asynchronous_calls_have_their_own_spans(server, at):
    for spans in spans_of_two(server, at, "asynchronous-elsewhere", 7):
        batch, handler = only(spans, "batch"), only(spans, "handler")
        worker = at.trace(batch.trace_id, "own", "deeper")
        own, deeper = (_named(worker, name) for name in ("own", "deeper"))
        request = only(spans, _REST)
        assert batch.links == [(request.trace_id, request.span_id)]
        assert (handler.parent_id, own.parent_id) == (batch.span_id, handler.span_id)
        assert deeper.parent_id == own.span_id
        assert {only(spans, name).parent_id for name in ("preprocess", "inference")} == {handler.span_id}


def test_spans_of_a_step_are_linked_to_all_requests(server, at):
    """Spans that a step opens are below the handler of its first request, and linked to that of the other."""
    first, second = spans_of_two(server, at, "continuous-here", 9)
    handlers = {only(each, "handler").span_id: only(each, "handler") for each in (first, second)}
    ids = [each.trace_id for each in handlers.values()]
    at.wait(lambda: any(_rows(span) == 2 for each in ids for span in at.of(each)), "the last step")
    (last,) = [span for each in ids for span in at.of(each) if _rows(span) == 2]
    (other,) = [span for span_id, span in handlers.items() if span_id != last.parent_id]
    assert last.links == [(other.trace_id, other.span_id)]
    assert handlers[last.parent_id].trace_id == last.trace_id
    for spans in (first, second):
        infer = only(spans, "inference")
        assert infer.parent_id == only(spans, "handler").span_id
        assert infer.end - infer.start >= 19_000_000


def _named(spans, name):
    (result,) = [span for span in spans if span.name == name]
    return result


def _rows(span):
    return span.attributes.get("rows") if span.name == "own" else None
