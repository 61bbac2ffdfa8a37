"""Traces and metrics of a server with front ends, gRPC and workflows, received by a collector."""

import json
import time

import pytest
from tests.e2e.grpc_client import INFERENCE, PATIENCE, channel, grpc_settings, oip, predict, stub
from tests.e2e.serving import Home, Server, archived, serving, wait_until, workflow
from tests.ext.otel.collector import collector, environment

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SERVER_KIND = 2

# The handler's own span has a child; what it sees of the trace is its answer.
SPANS = """
import time

from opentelemetry import trace

import modelserver

tracer = trace.get_tracer(__name__)


class Model(modelserver.Handler):
    def predict(self, rows: list[dict]) -> list[dict]:
        with tracer.start_as_current_span("own") as span:
            span.set_attribute("rows", len(rows))
            time.sleep(0.01)
            if rows[0].get("fail"):
                raise ValueError("told to fail")
            with tracer.start_as_current_span("deeper"):
                time.sleep(0.001)
        return [{"rows": len(rows)} for _ in rows]
"""
HEADERS = """
NAMES = ("traceparent", "tracestate", "baggage")


def handle(data, context):
    return data and [{name: context.get_request_header(i, name) for name in NAMES} for i in range(len(data))]
"""
FUNCTIONS = """
def first(data, context):
    return data and ["one" for _ in data]


def second(data, context):
    return data and ["two" for _ in data]
"""


@pytest.fixture(scope="module")
def at():
    with collector() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store, at, sink):
    """Two front ends, gRPC, a payload log; all requests are traced unless the client says otherwise."""
    folder = tmp_path_factory.mktemp("code")
    for name, text in (("spans", SPANS), ("headers", HEADERS)):
        archived(model_store, name, text, force=True)
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "two.yaml").write_text("dag:\n  first: [second]\n")
    workflow(model_store, "two", folder, "two.yaml")
    settings = {**grpc_settings(), "frontend_processes": 2, "otel": "all"}
    home = Home(tmp_path_factory.mktemp("traced"), environment(at), for_children=True)
    with serving(Server(home, model_store, ("--log-url", sink.url), settings)) as made:
        made.registered("spans.mar", batch_size=4, batch_policy="window", max_batch_delay=300)
        for name in ("headers", "parts", "obey", "fields"):
            made.registered(f"{name}.mar")
        yield made


def parent(trace_id, *, sampled=True):
    """The header of a caller whose span is `00f067aa0ba902b7`."""
    return {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-{'01' if sampled else '00'}"}


def named(spans, name):
    (result,) = [span for span in spans if span.name == name]
    return result


def test_trace_has_the_spans_of_a_request(server, at):
    """One trace has queue, batch, handler with its phases and the handler's own spans, and the response."""
    answer = server.predict("spans", {"a": 1}, headers={**parent(TRACE), "tracestate": "vendor=x"})
    assert answer.json() == {"rows": 1}

    names = ("POST /predictions/{name}", "queue", "batch", "handler", "preprocess", "inference", "answer")
    spans = at.trace(TRACE, *names, "postprocess", "own", "deeper")
    request, queue, batch, handler, prepare, infer, reply = (named(spans, name) for name in names)
    own, deeper = named(spans, "own"), named(spans, "deeper")
    assert (request.parent_id, request.kind) == ("00f067aa0ba902b7", SERVER_KIND)
    assert {queue.parent_id, batch.parent_id, reply.parent_id} == {request.span_id}
    assert handler.parent_id == batch.span_id
    assert {prepare.parent_id, infer.parent_id, own.parent_id} == {handler.span_id}
    assert deeper.parent_id == own.span_id
    assert batch.links == [(TRACE, request.span_id)]
    assert request.start <= queue.start <= queue.end <= batch.end <= request.end
    assert batch.start <= handler.start <= prepare.start <= prepare.end <= infer.start <= handler.end
    assert handler.end <= reply.start <= reply.end == request.end
    assert own.end - own.start >= 10_000_000
    assert infer.end - infer.start >= 10_000_000
    assert queue.end - queue.start >= 250_000_000  # the window
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["modelserver.model"] == "spans"
    assert request.attributes["modelserver.version"] == "1.0"
    assert request.attributes["modelserver.request_id"] == answer.headers["x-request-id"]
    assert batch.attributes["modelserver.batch.id"] == answer.headers["x-batch-id"]
    assert batch.attributes["modelserver.batch.reason"] == "delay"
    assert {span.trace_state for span in spans if span is not own and span is not deeper} == {"vendor=x"}
    assert {span.service for span in spans} == {"modelserver"}
    assert not any(span.is_failed for span in spans)


_REST = "POST /predictions/{name}"


def test_what_handlers_and_sinks_get(server, at, sink):
    """Handlers, and the payload log's sink, get the server's span as parent, and the rest unchanged; of a
    trace that its caller does not sample, all of it is unchanged, and nothing is exported.
    """
    trace_id = "a" * 32
    more = {"tracestate": "vendor=x", "baggage": "user=7", "ce-id": "one"}
    seen = server.predict("headers", b"", headers={**parent(trace_id), **more}).json()
    request = named(at.trace(trace_id, _REST), _REST)
    expected_parent = f"00-{trace_id}-{request.span_id}-01"
    assert seen == {"traceparent": expected_parent, "tracestate": "vendor=x", "baggage": "user=7"}
    for event in sink.wait(2, id="one"):
        passed = {name: event.heads[name] for name in ("traceparent", "tracestate", "baggage")}
        assert passed == seen
        assert event.heads["ce-traceparent"] == expected_parent

    unsampled = parent("b" * 32, sampled=False)
    seen = server.predict("headers", b"", headers={**unsampled, "ce-id": "two"}).json()
    assert seen["traceparent"] == unsampled["traceparent"]
    assert {event.heads["traceparent"] for event in sink.wait(2, id="two")} == {seen["traceparent"]}
    assert at.of("b" * 32) == []


def test_failed_spans_have_an_error_status(server, at):
    """Those of a failing handler and of a dead worker have an error; those of a client error have none."""
    trace_id = "d" * 32
    assert server.predict("spans", {"fail": 1}, headers=parent(trace_id)).status_code == 503
    spans = at.trace(trace_id, _REST, "handler", "own")
    assert named(spans, _REST).is_failed
    assert named(spans, "handler").is_failed
    assert named(spans, "own").is_failed

    trace_id = "e" * 32
    assert server.predict("obey", {"do": "exit"}, headers=parent(trace_id)).status_code == 500
    spans = at.trace(trace_id, _REST, "batch")
    assert named(spans, _REST).is_failed
    assert named(spans, "batch").is_failed
    assert "handler" not in {span.name for span in spans}

    trace_id = "f" * 32
    assert server.predict("nobody", b"", headers=parent(trace_id)).status_code == 404
    (request,) = at.trace(trace_id, _REST)
    assert request.attributes["http.response.status_code"] == 404
    assert not request.is_failed


def test_workflow_spans_are_below_the_request(server, at):
    """The nodes' queues and batches are below the one span of the request."""
    answer = server.management.post("/workflows", params={"url": "two.war"})
    assert answer.status_code == 200, answer.text
    trace_id = "1a" * 16
    response = server.inference.post("/wfpredict/two", content=b"x", headers=parent(trace_id))
    assert response.text == "two"
    spans = at.trace(trace_id, "POST /wfpredict/{name}", "batch", "batch", "queue", "queue")
    request = named(spans, "POST /wfpredict/{name}")
    batches = sorted((span for span in spans if span.name == "batch"), key=lambda span: span.start)
    assert [span.attributes["modelserver.model"] for span in batches] == ["two__first", "two__second"]
    assert {span.parent_id for span in batches} == {request.span_id}


def test_grpc_calls_are_traced(server, at):
    """Calls are traced as requests are, single and in streams, and handlers get their context."""
    with channel(server, "inference") as to:
        service = stub(to, f"{INFERENCE}InferenceAPIsService")
        metadata = (*parent("2a" * 16).items(), ("baggage", "user=7"))
        output = service.Predictions(predict("headers", body=b""), metadata=metadata, timeout=PATIENCE)
        name = f"{INFERENCE}InferenceAPIsService/Predictions"
        spans = at.trace("2a" * 16, name, "queue", "batch", "handler", "answer")
        call = named(spans, name)
        assert json.loads(output.prediction) == {
            "traceparent": f"00-{'2a' * 16}-{call.span_id}-01",
            "tracestate": None,
            "baggage": "user=7",
        }
        assert (call.parent_id, call.kind) == ("00f067aa0ba902b7", SERVER_KIND)
        assert call.attributes["rpc.grpc.status_code"] == 0
        assert call.attributes["modelserver.model"] == "headers"

        metadata = tuple(parent("2b" * 16, sampled=False).items())
        output = service.Predictions(predict("headers", body=b""), metadata=metadata, timeout=PATIENCE)
        assert json.loads(output.prediction)["traceparent"] == metadata[0][1]

        metadata = tuple(parent("2c" * 16).items())
        answers = service.StreamPredictions(predict("fields", parts=b"2"), metadata=metadata)
        assert [each.prediction for each in answers] == [b"part 0", b"part 1", b"last"]
        at.trace("2c" * 16, f"{INFERENCE}InferenceAPIsService/StreamPredictions", "batch")

        rows = stub(to, "inference.GRPCInferenceService")
        metadata = tuple(parent("2d" * 16).items())
        name = "inference.GRPCInferenceService/ModelStreamInfer"
        messages = [oip("ModelInferRequest", model_name="nobody") for _ in range(2)]
        assert len(list(rows.ModelStreamInfer(iter(messages), metadata=metadata))) == 2
        at.trace("2d" * 16, name)
        rows.ServerLive(oip("ServerLiveRequest"), metadata=tuple(parent("2e" * 16).items()))
    assert at.of("2b" * 16) == at.of("2e" * 16) == []


def test_lines_of_the_access_log_have_trace_ids(server):
    """Lines of traced requests end with request id and trace id, from front ends and of gRPC."""
    server.predict("headers", b"", headers={**parent("4a" * 16), "x-request-id": "of-4a"})
    server.predict("headers", b"", headers={**parent("4b" * 16, sampled=False), "x-request-id": "of-4b"})
    with channel(server, "inference") as to:
        service = stub(to, f"{INFERENCE}InferenceAPIsService")
        metadata = (*parent("4c" * 16).items(), ("x-request-id", "of-4c"))
        service.Predictions(predict("headers", body=b""), metadata=metadata, timeout=PATIENCE)
    wait_until(lambda: "4c" * 16 in server.home.log("access_log.log"), "the line")
    wait_until(lambda: f" of-4a trace_id={'4a' * 16}\n" in server.home.log("access_log.log"), "the line")
    server.home.wait_for_log(f" of-4c trace_id={'4c' * 16}\n", "access_log.log")
    assert "of-4b" not in server.home.log("access_log.log")


def test_metrics_match_those_of_prometheus(server, at):
    """Names and values are Prometheus's; counters are sums, and histograms have their bounds."""
    server.predict("headers", b"")
    counted = server.metric("ts_inference_requests_total", model_name="headers")

    def total():
        result = at.metrics.get("ts_inference_requests_total")
        points = [] if result is None else result.sum.data_points
        labels = [{each.key: each.value.string_value for each in point.attributes} for point in points]
        pairs = zip(points, labels, strict=True)
        return sum(point.as_double for point, label in pairs if label["model_name"] == "headers")

    at.wait(lambda: total() == counted, "the counter")
    text = server.metrics.get("/metrics").text
    type_lines = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name for name in type_lines if f"\n{name}" in text} <= set(at.metrics)
    request_seconds = at.metrics["modelserver_request_seconds"].histogram
    assert request_seconds.aggregation_temporality == 2
    point = request_seconds.data_points[0]
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert sum(point.bucket_counts) == point.count


def test_a_collector_that_hangs(server, at):
    """Requests are answered as ever, and what cannot be kept is dropped; then it goes on."""
    at.gate.clear()
    try:
        began = time.monotonic()
        for _ in range(20):
            assert server.predict("headers", b"", headers=parent("5a" * 16)).status_code == 200
        assert time.monotonic() - began < 10
    finally:
        at.gate.set()
    at.trace("5a" * 16, *[_REST] * 20)
