"""Which requests are traced, and their finished spans on the way to the exporter.

Spans are made when they are over, from times that the server notes anyway. A thread of the SDK exports them;
what does not fit into its queue is dropped, so a collector that hangs costs no request anything.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from modelserver import __version__
from modelserver.ext.otel.sdk import open_provider

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace.span import TraceState

Attributes: TypeAlias = "Mapping[str, str | int | bool | float]"

TRACEPARENT = b"traceparent"
_TRACESTATE = b"tracestate"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
UNSET = Status(StatusCode.UNSET)
SCOPE = InstrumentationScope("modelserver", __version__)
_PROPAGATOR = TraceContextTextMapPropagator()

# The samplers of OTEL_TRACES_SAMPLER that decide by the id of the trace alone, if there is no parent.
_BY_ID = re.compile(
    r"(?:ParentBased\{root:)?(?:(?P<on>AlwaysOnSampler)|(?P<off>AlwaysOffSampler)|"
    r"TraceIdRatioBased\{(?P<share>[\d.e-]+)\})(?:,.*)?",
    re.DOTALL,
)
_IDS = 1 << 64
# As most callers write that they do not sample a trace.
_UNSAMPLED = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")
_random_bits = random.Random().getrandbits  # noqa: S311 - no secret
# Characters of a traceparent, of a later version too.
_LONGEST = 256


class Tracing:
    """Decides about requests, and exports the spans of those that are traced.

    Args:
        provider: has the sampler, the ids and the resource.
        processor: gets finished spans.
        note: called with request id and trace id of each traced answer, for the access log.
    """

    def __init__(
        self, provider: TracerProvider, processor: SpanProcessor, note: Callable[[str, str], None]
    ) -> None:
        self.note = note
        self.sampler = provider.sampler
        self._ids = provider.id_generator
        self._resource = provider.resource
        self._export = processor.on_end
        # Exports the rest, which takes as long as the collector.
        self.shutdown = processor.shutdown
        plain = isinstance(provider.id_generator, RandomIdGenerator)
        self._bound = bound_of(provider.sampler) if plain else None
        self._follows_unsampled = follows_unsampled(provider.sampler)

    @classmethod
    def of_environment(cls, note: Callable[[str, str], None]) -> Tracing:
        """Makes it from the ``OTEL_…`` variables of the environment."""
        return cls(*open_provider(), note)

    def sample(
        self, headers: Sequence[tuple[bytes, bytes]], name: object
    ) -> tuple[SpanContext, SpanContext | None] | None:
        """The context of a new request's span, and that of its parent; None if it is not traced.

        ``headers`` may be empty unless there is a `traceparent`. ``name`` is the span's, as text if it is
        asked for.
        """
        # Called for each request: what is not traced costs a random number, or a look at its traceparent.
        if headers:
            values = [value for header, value in headers if header.lower() == TRACEPARENT]
            if values:
                if self._follows_unsampled and len(values) == 1 and _UNSAMPLED.fullmatch(values[0]):
                    return None
                return self._sample(_parent(headers), str(name))
        if self._bound is None:
            return self._sample(None, str(name))
        # An id is made only if it is needed, with the part that decides.
        low = _random_bits(64)
        if low >= self._bound:
            return None
        return self.context(_random_bits(64) << 64 | low or 1), None

    def _sample(self, parent: Context | None, name: str) -> tuple[SpanContext, SpanContext | None] | None:
        caller = get_current_span(parent).get_span_context() if parent is not None else None
        if caller is None or not caller.is_valid:
            # What is no traceparent counts as none.
            caller = parent = None
        trace_id = self._ids.generate_trace_id() if caller is None else caller.trace_id
        result = self.sampler.should_sample(parent, trace_id, name, SpanKind.SERVER)
        if result.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        return self.context(trace_id, result.trace_state), caller

    def context(self, trace_id: int, state: TraceState | None = None) -> SpanContext:
        return SpanContext(trace_id, self._ids.generate_span_id(), False, _SAMPLED, state)

    def child(self, parent: SpanContext) -> SpanContext:
        return self.context(parent.trace_id, parent.trace_state)

    def export(  # noqa: PLR0917 - in the order of the SDK's
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start: int,
        end: int,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Iterable[SpanContext] = (),
        events: Sequence[Event] = (),
        status: Status = UNSET,
    ) -> None:
        """Queues a finished span; ``start`` and ``end`` are nanoseconds since 1970."""
        self._export(
            ReadableSpan(
                name,
                context,
                parent,
                self._resource,
                attributes or {},
                events,
                [Link(each) for each in links],
                kind,
                None,
                status,
                start,
                max(start, end),
                SCOPE,
            )
        )


class Clock:
    """Turns seconds of the monotonic clock into nanoseconds since 1970, by one comparison of the clocks."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def __call__(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._offset


def traceparent(context: SpanContext) -> str:
    """The header that names this span as parent."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def failed(text: str) -> Status:
    """The status of a span that failed."""
    return Status(StatusCode.ERROR, text)


def bound_of(sampler: Sampler) -> int | None:
    """Traces are sampled whose id, modulo 2**64, is below this; None if the sampler needs to be asked."""
    match = _BY_ID.fullmatch(sampler.get_description())
    if match is None:
        return None
    if match["share"] is None:
        return _IDS if match["on"] else 0
    return TraceIdRatioBased.get_bound_for_rate(float(match["share"]))


def follows_unsampled(sampler: Sampler) -> bool:
    """Whether it samples no request whose caller, elsewhere, has not sampled it."""
    description = sampler.get_description()
    return description.startswith("ParentBased{") and "remoteParentNotSampled:AlwaysOffSampler" in description


def _parent(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    carrier: dict[str, list[str]] = {}
    for header, value in headers:
        if (name := header.lower()) in {TRACEPARENT, _TRACESTATE}:
            carrier.setdefault(name.decode(), []).append(value.decode("latin-1"))
    # Two are none (W3C Trace Context 3.2), and the SDK would log each that is too long.
    parents = carrier.get("traceparent", ())
    is_one = len(parents) == 1 and len(parents[0]) <= _LONGEST
    return _PROPAGATOR.extract(carrier if is_one else {})
