"""How busy the GPU is while something is measured, as its driver says."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

PERIOD = 0.1  # seconds between two readings


class Utilisation:
    """Within the block, reads the first GPU again and again; ``percents`` stays empty where there is none."""

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
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception:  # noqa: BLE001 - no package, no driver, no GPU: there is nothing to read
            return
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(0)
            while not self._end.wait(self._period):
                self.percents.append(float(nvml.nvmlDeviceGetUtilizationRates(device).gpu))
        except nvml.NVMLError:
            return
        finally:
            nvml.nvmlShutdown()
