"""System metrics: readings of the host, or what the operator's own collector prints."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.telemetry.system import SystemMonitor
from modelserver.ext.collector.collector import CollectedMetric, Collector, command_of
from modelserver.extension import Host

_log = logging.getLogger("modelserver.server")


async def extend(host: Host) -> None:
    """Off with ``disable_system_metrics``; with ``system_metrics_cmd`` the server does not read the host."""
    settings, metrics = host.settings, host.services.metrics
    every, command = settings.metric_time_interval, command_of(settings)
    if command is not None:
        collector = Collector(command, settings.python or sys.executable)
        if not settings.disable_system_metrics:
            host.run(lambda: collect(collector, metrics, every))
    elif not settings.disable_system_metrics:
        gpus, of_container = settings.number_of_gpu, not settings.as_torchserve
        monitor = SystemMonitor(number_of_gpu=gpus, of_container=of_container)
        host.run(lambda: watch_system(monitor, metrics, every))


async def watch_system(monitor: SystemMonitor, metrics: ServerMetrics, every: float) -> None:
    """Reads the host's state now and every ``every`` seconds, in a thread, as a driver or disk may hang."""
    while True:
        try:
            metrics.system(await asyncio.to_thread(monitor.read))
        except Exception:  # noqa: BLE001 - the next reading may succeed, and serving goes on without
            _log.exception("The state of the system could not be read")
        await asyncio.sleep(every)


async def collect(collector: Collector, metrics: ServerMetrics, every: float) -> None:
    """Runs the collector now and every ``every`` seconds."""
    while True:
        for reading in await collector.read():
            show(metrics, reading)
        await asyncio.sleep(every)


def show(metrics: ServerMetrics, reading: CollectedMetric) -> None:
    """Shows a metric of reference 15.3 or ``metrics_config``; others are ignored."""
    family = metrics.family(reading.name)
    if family is None:
        return
    known = {"Hostname": metrics.hostname, **reading.dimensions}
    take: Callable[[Any, float], None] = family.take
    take(family.labels(*(known.get(label, "") for label in family.label_names)), reading.value)
