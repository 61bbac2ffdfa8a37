"""Metrics in log mode: each update is a line in ts_metrics.log or model_metrics.log (reference 15.5)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from modelserver.engine.telemetry.prometheus import Counter, Gauge, Value, ValueFamily, format_value

SERVER_METRICS_LOGGER = "modelserver.metrics"
MODEL_METRICS_LOGGER = "modelserver.model_metrics"

_server_log = logging.getLogger(SERVER_METRICS_LOGGER)
_model_log = logging.getLogger(MODEL_METRICS_LOGGER)


class LoggedValue(Value):
    """A series that also logs each increment or new value."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: str, after: str) -> None:
        super().__init__()
        self._before = before
        self._after = after

    def add(self, amount: float = 1.0) -> None:
        self.value += amount
        self._log(amount)

    def set(self, value: float) -> None:
        self.value = value
        self._log(value)

    def _log(self, value: float) -> None:
        _server_log.info("%s%s%s%d", self._before, format_value(value), self._after, time.time())


class _Logged(ValueFamily):
    """A family of ``unit`` whose updates are logged; its last label is the host's name."""

    def __init__(self, name: str, help_text: str, label_names: Sequence[str], *, unit: str) -> None:
        super().__init__(name, help_text, label_names)
        self.unit = unit

    def _new_child(self, values: tuple[str, ...]) -> Value:
        *named, host = zip(self.label_names, values, strict=True)
        dimensions = ",".join(f"{name}:{value}" for name, value in named)
        after = f"|#{dimensions}|#hostname:{host[1]},timestamp:"
        return LoggedValue(f"{self.name}.{self.unit}:", after)


class LoggedCounter(_Logged, Counter):
    """A counter whose increments are logged."""


class LoggedGauge(_Logged, Gauge):
    """A gauge whose values are logged."""


def log_model_metric(
    name: str,
    value: float,
    unit: str,
    dimensions: Sequence[tuple[str, str]],
    *,
    hostname: str,
    request_id: str,
) -> None:
    """Logs a value of a handler's metric."""
    listed = ",".join(f"{key}:{text}" for key, text in dimensions)
    _model_log.info(
        "%s.%s:%s|#%s|#hostname:%s,requestID:%s,timestamp:%d",
        name,
        unit,
        format_value(value),
        listed,
        hostname,
        request_id,
        time.time(),
    )
