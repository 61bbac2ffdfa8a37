"""The metrics object that handlers find at ``context.metrics`` (reference 13.6)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from modelserver.wire.messages import Measurement, sendable

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIME_UNITS = ("ms", "s")
_SIZE_UNITS = ("MB", "kB", "GB", "B")


class HandlerMetrics:
    """Collects what a handler measures; the runtime sends it along with the batch's answers.

    Dimensions are objects with ``name`` and ``value``; ``idx`` is a position in the batch. As with the
    context, each thread sees the ids of the batch it began, other threads those of the latest.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self._latest: dict[int, str] = {}
        self._of_thread = threading.local()
        self._collected: list[Measurement] = []

    @property
    def request_ids(self) -> dict[int, str]:
        """Position in the current batch to request id."""
        ids: dict[int, str] = getattr(self._of_thread, "ids", self._latest)
        return ids

    @request_ids.setter
    def request_ids(self, request_ids: dict[int, str]) -> None:
        self._of_thread.ids = self._latest = request_ids

    def add_metric(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        unit: str | None,
        idx: int | None = None,
        dimensions: Iterable[Any] = (),
        metric_type: Any = "counter",
    ) -> None:
        """Adds one value; ``metric_type`` is counter, gauge or histogram."""
        kind = sendable(getattr(metric_type, "value", metric_type)).lower()
        self._add(name, value, unit, kind, dimensions, idx)

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Iterable[Any] = ()
    ) -> None:
        """Increments a counter by ``value``."""
        self._add(name, value, "count", "counter", dimensions, idx)

    def add_time(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Iterable[Any] = (),
        metric_type: Any = "gauge",
    ) -> None:
        """Adds a duration in ``ms`` or ``s``; ValueError for other units."""
        _check_unit(unit, _TIME_UNITS)
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_size(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Iterable[Any] = (),
        metric_type: Any = "gauge",
    ) -> None:
        """Adds a size in ``MB``, ``kB``, ``GB`` or ``B``; ValueError for other units."""
        _check_unit(unit, _SIZE_UNITS)
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Iterable[Any] = (),
        metric_type: Any = "gauge",
    ) -> None:
        """Adds a share in percent."""
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(self, name: str, value: float, dimensions: Iterable[Any] = ()) -> None:
        """Increments an error counter."""
        self._add(name, value, "", "counter", dimensions, None, level="Error")

    def collect(self) -> list[Measurement] | None:
        """What was added since the last call, or None."""
        # Another thread may be adding: what comes after the copy stays for the next time.
        collected = self._collected[:]
        del self._collected[: len(collected)]
        return collected or None

    def _add(  # noqa: PLR0917 - one argument per field
        self,
        name: str,
        value: float,
        unit: str | None,
        kind: str,
        dimensions: Iterable[Any],
        idx: int | None,
        level: str = "Model",
    ) -> None:
        named = [(sendable(d.name), sendable(d.value)) for d in dimensions or ()]
        present = {key for key, _ in named}
        defaults = [("ModelName", self.model_name), ("Level", level)]
        named += [(key, value) for key, value in defaults if key not in present]
        ids = self.request_ids
        request_id = ",".join(ids.values()) if idx is None else ids.get(idx, "")
        unit = sendable(unit or "")
        self._collected.append(Measurement(sendable(name), float(value), unit, kind, named, request_id))


def _check_unit(unit: str, allowed: tuple[str, ...]) -> None:
    if unit not in allowed:
        raise ValueError(f"The unit {unit!r} is not one of {', '.join(allowed)}.")
