"""How busy the GPU is while something is measured, and its memory, as its driver says.

It is the first GPU in CUDA_VISIBLE_DEVICES, on which a server with one worker computes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from modelserver.engine.telemetry.gpus import gpus

if TYPE_CHECKING:
    from types import TracebackType

    from modelserver.engine.telemetry.gpus import GpuReading

PERIOD = 0.1  # seconds between two readings


class Utilisation:
    """Within the block, reads the GPU again and again; ``percents`` stays empty where there is none."""

    def __init__(self, period: float = PERIOD) -> None:
        self.percents: list[float] = []
        self._period = period
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Utilisation:
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(self._period):
            reading = _first()
            # MIG devices say nothing of it.
            if reading is None or reading.utilization_percent is None:
                return
            self.percents.append(reading.utilization_percent)


def used_mib() -> float | None:
    """The memory in use on the first visible GPU, in MiB; None if it cannot be read."""
    reading = _first()
    return None if reading is None else reading.memory_used_mb


def _first() -> GpuReading | None:
    return next(iter(gpus.read()), None)
