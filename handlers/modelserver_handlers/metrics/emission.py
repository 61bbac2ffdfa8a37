"""One measured value on its way from a handler, and where such values go.

In a worker they go to the server with the batch's answers. Elsewhere (a test of a handler) they are logged as
the lines that TorchServe's workers print.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from modelserver_handlers.metrics.values import MetricTypes, Units

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Emission:
    """One value; ``kind`` is counter, gauge or histogram. Names and values of dimensions may be anything."""

    name: Any
    value: Any
    unit: Any
    kind: str
    dimensions: Sequence[tuple[Any, Any]] = ()
    request_id: str = ""

    @property
    def line(self) -> str:
        """As TorchServe's workers print it (reference 15.4)."""
        dimensions = ",".join(f"{name}:{value}" for name, value in self.dimensions)
        request = f",{self.request_id}" if self.request_id else ""
        return (
            f"[METRICS]{self.name}.{long_unit(self.unit)}:{self.value}|#{dimensions}|#type:{self.kind.upper()}"
            f"|#hostname:{socket.gethostname()},{int(time.time())}{request}"
        )


Sink: TypeAlias = Callable[[Emission], None]


def long_unit(unit: Any) -> Any:
    """TorchServe's long name of a unit; unknown ones are unchanged."""
    return Units.units.get(unit, unit) if unit is None or isinstance(unit, str) else unit


def kind_of(metric_type: Any) -> str:
    """The kind for a member of any enumeration, or for its value."""
    return str(getattr(metric_type, "value", metric_type)).lower()


def type_of(kind: str) -> MetricTypes | None:
    """The member for a kind, None if there is none."""
    return next((known for known in MetricTypes if known.value == kind), None)


def log_emission(emission: Emission) -> None:
    """The sink outside of workers."""
    logger.info("%s", emission.line)


_sink: Sink = log_emission


def send_emissions_to(sink: Sink) -> None:
    """From now on, values of metrics without a cache go to this sink."""
    global _sink  # noqa: PLW0603 - a process has one way to its server
    _sink = sink


def emit(emission: Emission) -> None:
    """Send a value to the sink."""
    _sink(emission)
