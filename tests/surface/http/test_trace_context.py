import pytest

from modelserver.surface.http.trace_context import trace_context

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_trace_is_passed_on():
    headers = [
        (b"Traceparent", PARENT),
        (b"tracestate", b"a=1"),
        (b"Tracestate", b"b=2"),
        (b"baggage", b"user=7"),
        (b"authorization", b"Bearer x"),
    ]
    states = (("tracestate", "a=1,b=2"), ("baggage", "user=7"))
    assert trace_context(headers) == (("traceparent", PARENT.decode()), *states)


@pytest.mark.parametrize(
    "parents",
    [
        [],
        [b""],
        [PARENT, PARENT],
        [b"ff" + PARENT[2:]],
        [PARENT.upper()],
        [PARENT + b"\xff"],
        [PARENT + b"-" + b"x" * 9000],
        [b"00-" + b"0" * 32 + PARENT[35:]],
    ],
    ids=["none", "empty", "two", "version", "capitals", "bytes", "long", "zero"],
)
def test_invalid_trace_is_not_passed_on(parents):
    assert trace_context([*((b"traceparent", each) for each in parents), (b"baggage", b"a=1")]) == ()


@pytest.mark.parametrize("value", [b"", b"\xe4=1", b"a=\x00", b"a=" + b"1" * 8192])
def test_baggage_that_is_none(value):
    headers = [(b"traceparent", PARENT), (b"baggage", value)]
    assert trace_context(headers) == (("traceparent", PARENT.decode()),)
