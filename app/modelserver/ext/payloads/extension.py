"""The payload log: requests and answers as CloudEvents, sent to a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.payloads.log import PayloadLog
from modelserver.ext.payloads.watcher import watch_with

if TYPE_CHECKING:
    from modelserver.engine.telemetry.metrics import ServerMetrics
    from modelserver.extension import Host


class Extension:
    """On with ``payload_log_url``."""

    def __init__(self) -> None:
        self._log: PayloadLog | None = None
        self._grace = 0.0

    async def open(self, host: Host) -> None:
        log = self._log = PayloadLog.of(host.settings)
        self._grace = host.settings.payload_log_drain_timeout
        log.start()
        show(log, host.services.metrics)
        host.watch(watch_with(log))

    async def close(self, grace: float) -> None:
        if self._log is not None:
            await self._log.close(self._grace)


def show(log: PayloadLog, metrics: ServerMetrics) -> None:
    """Adds metrics of the payload log's events."""
    about = "Events of the payload log, by outcome."
    events = metrics.counter("modelserver_payload_events_total", about, ("outcome",))
    about = "Events that wait for the sink."
    waiting = metrics.gauge("modelserver_payload_events_waiting", about).labels()

    def update() -> None:
        for outcome, count in log.counts().items():
            events.labels(outcome).set(count)
        waiting.set(log.waiting)

    metrics.on_render(update)
