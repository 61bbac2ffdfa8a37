from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

from modelserver.ext.otel.spans import Tracing


class SpanStore:
    """Takes finished spans, and the notes for the access log."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.noted: list[tuple[str, str]] = []
        self.is_closed = False

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def shutdown(self) -> None:
        self.is_closed = True

    def note(self, request_id: str, trace_id: str) -> None:
        self.noted.append((request_id, trace_id))

    def named(self, name: str) -> ReadableSpan:
        (only,) = [span for span in self.spans if span.name == name]
        return only


def tracing(sampler: Sampler | None = None) -> tuple[Tracing, SpanStore]:
    """With this sampler; by default all is sampled that a caller does not decide otherwise about."""
    store = SpanStore()
    provider = TracerProvider(sampler or ParentBased(ALWAYS_ON), shutdown_on_exit=False)
    return Tracing(provider, store, store.note), store
