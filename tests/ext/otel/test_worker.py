import os
import subprocess
import sys

from opentelemetry import trace
from tests.ext.otel.collector import collector, environment

from modelserver.ext.otel import worker as tracing

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = f"00-{'b' * 32}-00f067aa0ba902b8-01"
HANDLER = f"00-{TRACE}-00f067aa0ba902b7-01"

WORKER = f"""
import sys
from modelserver.ext.otel import worker as tracing

assert tracing.enter({HANDLER!r}) is None
tracing.leave(None)
assert "opentelemetry.sdk" not in sys.modules

from opentelemetry import trace

tracer = trace.get_tracer("a handler")
tracing.exporting.open()
token = tracing.enter({HANDLER!r})
with tracer.start_as_current_span("own"):
    pass
tracing.leave(token)
with tracer.start_as_current_span("outside"):
    pass
token = tracing.enter({HANDLER!r}, {OTHER!r}, "none")
with tracer.start_as_current_span("shared"):
    with tracer.start_as_current_span("deeper"):
        pass
tracing.leave(token)
tracing.exporting.close()
"""


def current():
    return trace.get_current_span().get_span_context()


def test_the_handlers_span_is_current(monkeypatch):
    monkeypatch.setattr(tracing.exporting, "_is_open", True)
    before = current()
    token = tracing.enter(HANDLER)
    assert f"{current().trace_id:032x}" == TRACE
    assert current().is_remote
    tracing.leave(token)

    assert current() == before
    assert tracing.enter("none") is None
    tracing.leave(None)


def test_a_provider_of_the_handlers_own_stays(monkeypatch):
    exporting = tracing.Exporting()
    monkeypatch.setattr(trace, "get_tracer_provider", object)
    monkeypatch.setattr(trace, "set_tracer_provider", None)
    exporting.open()
    exporting.close()


def test_spans_are_not_exported_without_the_extra(monkeypatch, caplog):
    exporting = tracing.Exporting()
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    monkeypatch.setitem(sys.modules, "modelserver.ext.otel.sdk", None)
    exporting.open()
    exporting.open()

    (record,) = caplog.records
    assert "The handler's spans are not exported" in record.getMessage()


def test_spans_are_exported_from_a_worker():
    """Those that a handler opens for a traced batch, at the latest when the worker ends; no others.

    Where several traced requests share a call, they are linked to the others.
    """
    with collector() as at:
        variables = environment(at, OTEL_BSP_SCHEDULE_DELAY="60000")
        subprocess.run(
            [sys.executable, "-c", WORKER], env={**os.environ, **variables}, check=True, timeout=60
        )

        own, deeper, shared = at.spans
        assert (own.name, own.trace_id, own.parent_id) == ("own", TRACE, "00f067aa0ba902b7")
        assert own.links == deeper.links == []
        assert (shared.name, shared.parent_id) == ("shared", own.parent_id)
        assert shared.links == [("b" * 32, "00f067aa0ba902b8")]
