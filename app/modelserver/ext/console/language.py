"""The figures of language models: what their metrics say, by version."""

from __future__ import annotations

from typing import Any, Final

from modelserver.engine.telemetry.metrics import ServerMetrics

# Metrics of OpenAI's API, and those that the handler of an engine reports; the page's names for them.
_METRICS: Final = {
    "modelserver_first_token_seconds": "first",
    "modelserver_token_interval_seconds": "interval",
    "modelserver_prompt_tokens_total": "tokensIn",
    "modelserver_completion_tokens_total": "tokensOut",
    "modelserver_streams": "streams",
    "EngineRunningRequests": "engineRunning",
    "EngineWaitingRequests": "engineWaiting",
    "EngineCacheUsage": "cache",
    "EnginePrefixHitRate": "hits",
}
# The sum of several engines says nothing.
_PERCENT: Final = frozenset({"cache", "hits"})

Bounds = dict[str, tuple[float, ...]]


def language_figures(metrics: ServerMetrics) -> tuple[dict[str, dict[str, Any]], Bounds]:
    """The figures of each version that has some, and the bounds of their histograms.

    A histogram has its sum, and how many fell into each bucket.
    """
    figures: dict[str, dict[str, Any]] = {}
    bounds: Bounds = {}
    for family in metrics.families():
        name = _METRICS.get(family.name)
        if name is None:
            continue
        if family.bounds:
            bounds[name] = family.bounds
        for values, reading in family.readings():
            labels = {
                label.lower().replace("_", ""): value
                for label, value in zip(family.label_names, values, strict=True)
            }
            version = figures.setdefault(f"{labels.get('modelname')}/{labels.get('modelversion')}", {})
            if isinstance(reading, tuple):
                version[name] = [round(reading[1], 6), *reading[0]]
            else:
                before = version.get(name, 0.0)
                version[name] = max(before, reading) if name in _PERCENT else before + reading
    return figures, bounds
