"""Metrics of language models: times to tokens, tokens, and streams, by model and version.

Only requests of this protocol are measured, by a watcher that the codec adds to them: those of other models
cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from modelserver.engine.batching.request import Request
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.models.version import ModelVersion
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.watching import Watcher

_LABELS: Final = ("model_name", "model_version")
# Seconds: the bounds of both histograms.
_FIRST: Final = "0.001 0.0025 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 30"
_INTERVAL: Final = "0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5"
_FIRST_BOUNDS, _INTERVAL_BOUNDS = (tuple(map(float, each.split())) for each in (_FIRST, _INTERVAL))


class TokenCounts(msgspec.Struct):
    """What a handler reports of an answer, as parameters of its response."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


_decode_counts = msgspec.json.Decoder(TokenCounts).decode
_NONE: Final = TokenCounts()


def counts_of(request: Request) -> TokenCounts:
    """The tokens of a request whose answer is one row; none for a handler that does not report them."""
    answered = request.answers[0]
    if answered is None or not answered[0].parameters:
        return _NONE
    try:
        return _decode_counts(answered[0].parameters)
    except msgspec.DecodeError:
        return _NONE


_Take: TypeAlias = Callable[[float], None]


class TokenSeries(NamedTuple):
    """What takes the values of one version's series: observes seconds, or adds a count."""

    first: _Take
    interval: _Take
    prompt: _Take
    completion: _Take
    streams: _Take
    aborted: _Take


class LanguageMeters:
    """The metrics."""

    def __init__(self, metrics: ServerMetrics) -> None:
        first = "From a request's arrival to the first token of its stream."
        interval = "Mean time between the tokens of a stream."
        histogram, counter, gauge = metrics.histogram, metrics.counter, metrics.gauge
        self._families: tuple[Any, ...] = (
            histogram("modelserver_first_token_seconds", first, _LABELS, bounds=_FIRST_BOUNDS),
            histogram("modelserver_token_interval_seconds", interval, _LABELS, bounds=_INTERVAL_BOUNDS),
            counter("modelserver_prompt_tokens_total", "Tokens of prompts and inputs.", _LABELS),
            counter("modelserver_completion_tokens_total", "Tokens that models generated.", _LABELS),
            gauge("modelserver_streams", "Streams that are being sent.", _LABELS),
            counter("modelserver_streams_aborted_total", "Streams without their end.", _LABELS),
        )
        metrics.follow_versions(*self._families)

    def of(self, model: ModelVersion) -> TokenSeries:
        """The series of a version."""
        version = model.name, model.version
        first, interval, *counts = (family.labels(*version) for family in self._families)
        return TokenSeries(first.observe, interval.observe, *(each.add for each in counts))

    def watch(self, exchange: Exchange) -> TokenMeter:
        """Measures a request, in addition to a watcher that it already has."""
        meter = TokenMeter(self)
        watcher = exchange.watcher
        exchange.watcher = meter if watcher is None else watcher.beside(meter)
        return meter


class TokenMeter(Watcher):
    """Measures one request. ``tokens``: the counts of its inputs, whose answers are joined."""

    __slots__ = ("_first", "_meters", "_request", "_series", "tokens")

    def __init__(self, meters: LanguageMeters) -> None:
        self._meters = meters
        self._request: Request | None = None
        self._series: TokenSeries | None = None
        self._first = 0.0
        self.tokens = 0

    def queued(self, request: Request, model: Any) -> None:
        self._request, self._series = request, self._meters.of(model)

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        if status != 200:
            return
        self._count()
        if content_type.startswith("text/event-stream") and self._request and self._series:
            # A stream that was over before its first part was sent.
            self._series.first(monotonic() - self._request.arrived)

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        request, series = self._request, self._series
        if request is not None and series is not None:
            self._first = monotonic()
            series.first(self._first - request.arrived)
            series.streams(1.0)

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        request, series = self._request, self._series
        if request is None or series is None:
            return
        series.streams(-1.0)
        if not complete or request.failure() is not None:
            series.aborted(1.0)
        elif (tokens := self._count()) > 1:
            series.interval((monotonic() - self._first) / (tokens - 1))

    def left(self) -> None:
        if self._first and self._series is not None:
            self._series.streams(-1.0)
            self._series.aborted(1.0)

    def _count(self) -> int:
        """Counts the tokens, and returns how many were generated."""
        request, series = self._request, self._series
        if request is None or series is None:
            return 0
        counts = counts_of(request)
        series.prompt(counts.prompt_tokens + self.tokens)
        series.completion(counts.completion_tokens)
        return counts.completion_tokens
