from collections import Counter

import pytest
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.id_generator import IdGenerator
from tests.ext.otel.spans import SpanStore, tracing

from modelserver.ext.otel.spans import Clock, Tracing, bound_of, follows_unsampled, traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01".encode()


class OneByOne(IdGenerator):
    """Counts."""

    def __init__(self):
        self.last = 0

    def generate_trace_id(self):
        self.last += 1
        return self.last

    def generate_span_id(self):
        return 7


class OnlyNamed(sampling.Sampler):
    """Samples what has this name, and decides by nothing else."""

    def should_sample(self, parent_context, trace_id, name, *_args, **_kwargs):
        expected = sampling.Decision.RECORD_AND_SAMPLE if name == "expected" else sampling.Decision.DROP
        return sampling.SamplingResult(expected)

    def get_description(self):
        return "OnlyNamed"


def test_request_without_a_parent_starts_a_trace():
    made, _ = tracing(sampling.ParentBased(sampling.TraceIdRatioBased(0.25)))
    result = [made.sample([(b"host", b"x")], "a") for _ in range(4000)]

    sampled = [contexts for contexts in result if contexts is not None]
    assert 850 < len(sampled) < 1150
    assert all(parent is None for _, parent in sampled)
    assert all(context.trace_id % (1 << 64) < (1 << 62) for context, _ in sampled)
    assert Counter(context.trace_id for context, _ in sampled).most_common(1)[0][1] == 1


def test_a_caller_decides():
    """With a parent, whether its caller samples; the trace and its state go on."""
    made, _ = tracing(sampling.ParentBased(sampling.ALWAYS_OFF))
    headers = [(b"TraceParent", PARENT), (b"Tracestate", b"vendor=x"), (b"tracestate", b"other=y")]
    result = made.sample(headers, "a")

    context, parent = result
    assert f"{context.trace_id:032x}" == TRACE
    assert f"{parent.span_id:016x}" == CALLER
    assert context.trace_state.to_header() == "vendor=x,other=y"
    assert made.sample([(b"traceparent", PARENT[:-1] + b"0")], "a") is None
    assert made.sample([], "a") is None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"traceparent", b"")],
        [(b"traceparent", b"\xff" * 55)],
        [(b"traceparent", PARENT + b"-more")],
        [(b"traceparent", b"01-" + PARENT[3:] + b"-" + b"x" * 300)],
        [(b"traceparent", PARENT), (b"traceparent", PARENT)],
        [(b"traceparent", b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01"), (b"tracestate", b"vendor=x")],
    ],
    ids=["empty", "bytes", "more", "long", "two", "zero"],
)
def test_what_is_no_parent(headers, caplog):
    made, _ = tracing()
    result = made.sample(headers, "a")

    context, parent = result
    assert parent is None
    assert f"{context.trace_id:032x}" != TRACE
    assert len(context.trace_state) == 0
    assert caplog.records == []


@pytest.mark.parametrize(
    ("sampler", "follows"),
    [
        (sampling.ParentBased(sampling.ALWAYS_ON), True),
        (sampling.ParentBased(sampling.ALWAYS_ON, remote_parent_not_sampled=sampling.ALWAYS_ON), False),
        (sampling.ALWAYS_ON, False),
        (OnlyNamed(), False),
    ],
)
def test_callers_that_do_not_sample(sampler, follows):
    made, _ = tracing(sampler)

    assert follows_unsampled(sampler) == follows
    if sampler.get_description() != "OnlyNamed":
        assert (made.sample([(b"traceparent", PARENT[:-2] + b"02")], "a") is None) == follows
        zero = b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-00"
        assert made.sample([(b"traceparent", zero)], "a") is not None


def test_own_sampler_and_id_generator_are_used():
    """The sampler gets the request's name."""
    made, _ = tracing(OnlyNamed())

    assert made.sample([], "expected") is not None
    assert made.sample([], "other") is None

    store = SpanStore()
    made = Tracing(
        TracerProvider(sampling.ALWAYS_ON, id_generator=OneByOne(), shutdown_on_exit=False), store, store.note
    )
    contexts = [made.sample([], "a") for _ in range(2)]

    assert [result[0].trace_id for result in contexts if result is not None] == [1, 2]


@pytest.mark.parametrize(
    ("sampler", "bound"),
    [
        (sampling.ALWAYS_ON, 1 << 64),
        (sampling.ALWAYS_OFF, 0),
        (sampling.ParentBased(sampling.ALWAYS_ON), 1 << 64),
        (sampling.ParentBased(sampling.ALWAYS_OFF), 0),
        (sampling.TraceIdRatioBased(0.01), sampling.TraceIdRatioBased(0.01).bound),
        (sampling.ParentBased(sampling.TraceIdRatioBased(1e-7)), sampling.TraceIdRatioBased(1e-7).bound),
        (OnlyNamed(), None),
    ],
)
def test_samplers_may_decide_by_the_id(sampler, bound):
    assert bound_of(sampler) == bound


def test_spans_are_made():
    """They end no sooner than they begin, and go to the exporter; a context is named as W3C has it."""
    made, store = tracing()
    context = made.context(7)
    made.export("one", made.child(context), context, 5, 3, {"a": 1}, links=[context])
    made.shutdown()

    (span,) = store.spans
    assert (span.name, span.start_time, span.end_time, dict(span.attributes)) == ("one", 5, 5, {"a": 1})
    assert span.context.trace_id == 7
    assert span.parent == context
    assert [link.context for link in span.links] == [context]
    assert store.is_closed

    clock = Clock()
    made, _ = tracing()

    assert clock(2.0) - clock(1.5) == 500_000_000
    lines = traceparent(made.context(int(TRACE, 16)))
    assert lines.startswith(f"00-{TRACE}-")
    assert (len(lines), lines[-3:]) == (55, "-01")
