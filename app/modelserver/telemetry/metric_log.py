"""Metrics in log mode: an update is a line of ts_metrics.log or model_metrics.log (reference 15.5)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from modelserver.telemetry.prometheus import Counter, Gauge, Value, format_value

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVER_METRICS_LOGGER = "modelserver.metrics"
MODEL_METRICS_LOGGER = "modelserver.model_metrics"

_server_log = logging.getLogger(SERVER_METRICS_LOGGER)
_model_log = logging.getLogger(MODEL_METRICS_LOGGER)


class LoggedValue(Value):
    """A series that also writes each increment or new value to the log."""

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


def _logged_value(name: str, unit: str, label_names: Sequence[str], values: Sequence[str]) -> LoggedValue:
    # The last label is the host's name, which has a place of its own.
    dimensions = ",".join(f"{n}:{v}" for n, v in zip(label_names[:-1], values[:-1], strict=True))
    return LoggedValue(f"{name}.{unit}:", f"|#{dimensions}|#hostname:{values[-1]},timestamp:")


class LoggedCounter(Counter):
    """A counter of ``unit`` whose increments are logged; its last label is the host's name."""

    def __init__(self, name: str, help_text: str, label_names: Sequence[str], *, unit: str) -> None:
        super().__init__(name, help_text, label_names)
        self.unit = unit

    def _new_child(self, values: tuple[str, ...]) -> Value:
        return _logged_value(self.name, self.unit, self.label_names, values)


class LoggedGauge(Gauge):
    """A gauge of ``unit`` whose values are logged; its last label is the host's name."""

    def __init__(self, name: str, help_text: str, label_names: Sequence[str], *, unit: str) -> None:
        super().__init__(name, help_text, label_names)
        self.unit = unit

    def _new_child(self, values: tuple[str, ...]) -> Value:
        return _logged_value(self.name, self.unit, self.label_names, values)


def log_model_metric(
    name: str,
    value: float,
    unit: str,
    dimensions: Sequence[tuple[str, str]],
    *,
    hostname: str,
    request_id: str,
) -> None:
    """Write one metric of a handler to the log."""
    listed = ",".join(f"{key}:{text}" for key, text in dimensions)
    _model_log.info(
        "%s.%s:%s|#%s|#hostname:%s,requestID:%s,timestamp:%d",
        *(name, unit, format_value(value), listed, hostname, request_id, time.time()),
    )
