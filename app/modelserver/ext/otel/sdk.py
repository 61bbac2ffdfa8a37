"""OpenTelemetry's SDK as its environment variables (``OTEL_…``) describe it, in the server and in workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

# Seconds that the end of a process waits for a collector.
GRACE = 2.0


class HashedOnce(Resource):
    """A resource with a cached hash, which the SDK's encoder needs for each span."""

    def __init__(self, other: Resource) -> None:
        super().__init__(dict(other.attributes), other.schema_url)
        self._hash = hash(other)

    def __hash__(self) -> int:
        return self._hash


def resource() -> Resource:
    """What describes this service; its name is `modelserver` unless the environment says another."""
    service = Resource.create()
    if str(service.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        service = service.merge(Resource({SERVICE_NAME: "modelserver"}))
    return HashedOnce(service)


def open_provider(sampler: Sampler | None = None) -> tuple[TracerProvider, BatchSpanProcessor]:
    """A provider, by default with the environment's sampler, and what exports its spans in a thread."""
    # Ended by close_within_grace: by itself, it would wait for 30 seconds.
    provider = TracerProvider(sampler, resource(), shutdown_on_exit=False)
    processor = BatchSpanProcessor(OTLPSpanExporter())
    provider.add_span_processor(processor)
    return provider, processor


def close_within_grace(close: Callable[[], object], seconds: float = GRACE) -> None:
    """Calls ``close``, but waits no longer than this for it: the collector may hang."""
    closing = threading.Thread(target=close, name="otel-close", daemon=True)
    closing.start()
    closing.join(seconds)
