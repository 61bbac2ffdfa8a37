"""The operator's own collector of system metrics."""

from __future__ import annotations

import asyncio
import sys

from modelserver.ext.collector.collector import Collector
from modelserver.extension import Host


class Extension:
    """On with ``system_metrics_cmd``, in place of the metrics that the server reads itself."""

    async def open(self, host: Host) -> None:
        settings, metrics = host.settings, host.services.metrics
        collector = Collector(settings.collector or "", settings.python or sys.executable)

        async def collect() -> None:
            while True:
                for reading in await collector.read():
                    metrics.collected(reading.name, reading.value, reading.dimensions)
                await asyncio.sleep(settings.metric_time_interval)

        if not settings.disable_system_metrics:
            host.run(collect)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
