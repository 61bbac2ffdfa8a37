"""Spans that a handler opens are children of the handler's own, if it uses OpenTelemetry.

The server decides which requests are traced, and sends the context of the span with their batches. The SDK is
imported only if the handler has imported the API.
"""

from __future__ import annotations

import logging
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

_log = logging.getLogger(__name__)

_PARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-01")
_API = "opentelemetry.trace"
# The key of (the handler's span, those of the other requests) in OpenTelemetry's context.
_SHARED = "modelserver.shared"


class Exporting:
    """Exports the spans of this process, at most once set up."""

    def __init__(self) -> None:
        self._is_open = False
        self._processor: BatchSpanProcessor | None = None

    def open(self) -> None:
        """Sets it up where the handler has imported the API, and has set up nothing itself."""
        api = sys.modules.get(_API)
        if self._is_open or api is None:
            return
        self._is_open = True
        if not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            return
        try:
            exporter = import_module("modelserver.ext.otel.sdk")
        except ImportError as error:
            _log.warning("The handler's spans are not exported: %s", error)
            return
        sampling = import_module("opentelemetry.sdk.trace.sampling")
        # What no traced batch is the cause of would be a trace of its own.
        provider, self._processor = exporter.open_provider(sampling.ParentBased(sampling.ALWAYS_OFF))
        provider.add_span_processor(_linking())
        api.set_tracer_provider(provider)

    def close(self) -> None:
        """Exports the rest, for two seconds at most."""
        if self._processor is not None:
            import_module("modelserver.ext.otel.sdk").close_within_grace(self._processor.shutdown)


exporting = Exporting()


def _span_context(api: Any, trace: str) -> Any:
    """The handler's span that a `traceparent` names; None if it names none."""
    if (match := _PARENT.fullmatch(trace)) is None:
        return None
    flags = api.TraceFlags(api.TraceFlags.SAMPLED)
    return api.SpanContext(int(match[1], 16), int(match[2], 16), True, flags)


def _linking() -> Any:
    """A processor that links spans to all requests of their call; see :func:`enter`."""
    context: Any = import_module("opentelemetry.context")

    class Linking(import_module("opentelemetry.sdk.trace").SpanProcessor):  # type: ignore[misc]
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            parent, links = context.get_value(_SHARED, parent_context) or (None, ())
            if span.parent == parent:
                for link in links:
                    span.add_link(link)

    return Linking()


def enter(trace: str, *others: str) -> Any:
    """Makes the handler's span the current one; returns what :func:`leave` needs.

    Spans directly below it are linked to those of ``others``, whose requests share the call.
    """
    api = sys.modules.get(_API)
    if api is None or (parent := _span_context(api, trace)) is None:
        return None
    exporting.open()
    context: Any = import_module("opentelemetry.context")
    entered = api.set_span_in_context(api.NonRecordingSpan(parent))
    if others:
        links = [match for other in others if (match := _span_context(api, other)) is not None]
        entered = context.set_value(_SHARED, (parent, links), entered)
    return context.attach(entered)


def leave(token: Any) -> None:
    """Ends what :func:`enter` began."""
    if token is not None:
        import_module("opentelemetry.context").detach(token)
