"""The queue between requests and the sink, and the threads that empty it.

Putting an event never blocks: a full queue drops it. Threads build and send the events, so the sink cannot
delay requests (KServe's agent makes requests wait, kserve reference 10.3). An event is only sent twice if a
closed connection may have lost it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from modelserver.ext.payloads.event import Event, Origin
from modelserver.ext.payloads.sink import Sink, SinkConnection, SinkError
from modelserver.models.settings.settings import Settings

_log = logging.getLogger("modelserver.payloads")

QUIET_SECONDS = 60.0
OUTCOMES = ("sent", "failed", "queue_full", "too_large", "shutdown")
_WORDS = {
    "failed": "could not be sent",
    "queue_full": "found the queue full",
    "too_large": "were larger than payload_log_max_body",
    "shutdown": "were unsent when the server stopped",
}


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """Limits: events and bytes that are waiting or being sent, bytes of one body, and threads."""

    events: int = 100
    nbytes: int = 1 << 26
    body: int = 6553500
    connections: int = 5


class PayloadLog:
    """Queues and sends events; ``mode`` is ``all``, ``request`` or ``response``.

    ``requests`` and ``responses`` say which of them are logged. ``clock``, in seconds, limits how often
    losses are logged. Unless noted, methods are for the event loop's thread.
    """

    def __init__(
        self,
        sink: Sink,
        origin: Origin,
        mode: str = "all",
        limits: PayloadLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.requests = mode in ("all", "request")
        self.responses = mode in ("all", "response")
        self.limits = limits or PayloadLimits()
        self._sink = sink
        self._clock = clock
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        # Each counter is written by one thread, so no lock is needed: the difference is pending.
        self._taken_in = self._bytes_in = 0
        self._dropped = dict.fromkeys(("queue_full", "too_large", "shutdown"), 0)
        self._senders = [
            _Sender(self._events, sink, origin, self.report_losses) for _ in range(self.limits.connections)
        ]
        self._reported = dict.fromkeys(OUTCOMES, 0)
        self._quiet_until = 0.0
        self._reporting = threading.Lock()

    @classmethod
    def of(cls, settings: Settings) -> PayloadLog:
        """The payload log that the settings describe. Raises ConfigError for ``payload_log_ca_file``."""
        limits = PayloadLimits(
            settings.payload_log_queue_size,
            settings.payload_log_queue_bytes,
            settings.payload_log_max_body,
            settings.payload_log_connections,
        )
        return cls(Sink.of(settings), Origin.of(settings), settings.payload_log_mode, limits)

    def start(self) -> None:
        _log.info("Payload log: events go to %s", self._sink)
        for sender in self._senders:
            sender.start()

    def put(self, event: Event) -> None:
        """Queues an event or drops it; never blocks."""
        size = len(event.body)
        if size > self.limits.body:
            self.drop("too_large")
            return
        waiting = self._bytes_in - sum(sender.bytes_done for sender in self._senders)
        if self.waiting >= self.limits.events or waiting + size > self.limits.nbytes:
            self.drop("queue_full")
        else:
            self._taken_in += 1
            self._bytes_in += size
            self._events.put(event)

    @property
    def waiting(self) -> int:
        """Events that are waiting or being sent."""
        return self._taken_in - sum(sender.done for sender in self._senders)

    def counts(self) -> dict[str, int]:
        """Events by outcome, see :data:`OUTCOMES`."""
        return {
            "sent": sum(sender.sent for sender in self._senders),
            "failed": sum(sender.failed for sender in self._senders),
            **self._dropped,
        }

    def drop(self, why: str) -> None:
        """Counts an event that is not sent, by one of :data:`OUTCOMES`."""
        self._dropped[why] += 1
        self.report_losses()

    def report_losses(self, *, at_last: bool = False) -> None:
        """Logs new losses, at most once a minute unless ``at_last``; for any thread."""
        now = self._clock()
        if (now < self._quiet_until and not at_last) or not self._reporting.acquire(blocking=False):
            return
        try:
            counts = self.counts()
            lost = {name: counts[name] - self._reported[name] for name in _WORDS}
            if not any(lost.values()):
                return
            self._quiet_until = now + QUIET_SECONDS
            self._reported = counts
            text = ", ".join(f"{count} {_WORDS[name]}" for name, count in lost.items() if count)
            fault = next((sender.fault for sender in self._senders if sender.fault), "")
            reason = f" ({fault})" if lost["failed"] and fault else ""
            _log.warning("Payload log: events for %s are lost: %s%s", self._sink, text, reason)
        finally:
            self._reporting.release()

    async def close(self, grace: float) -> None:
        """Sends waiting events for up to ``grace`` seconds, then drops the rest."""
        for _ in self._senders:
            self._events.put(None)
        await asyncio.to_thread(self._join, time.monotonic() + grace)
        for sender in self._senders:
            sender.stop()
        self._dropped["shutdown"] += self.waiting
        self.report_losses(at_last=True)

    def _join(self, deadline: float) -> None:
        for sender in self._senders:
            if sender.is_alive():
                sender.join(max(0.0, deadline - time.monotonic()))


class _Sender(threading.Thread):
    """Sends events until it gets None.

    ``done``, ``sent``, ``failed`` count events, ``bytes_done`` bytes of bodies; ``fault`` is the last error.
    """

    def __init__(
        self,
        events: queue.SimpleQueue[Event | None],
        sink: Sink,
        origin: Origin,
        on_failure: Callable[[], None],
    ) -> None:
        super().__init__(name="payload-log", daemon=True)
        self.done = self.sent = self.failed = self.bytes_done = 0
        self.fault = ""
        self._events = events
        self._origin = origin
        self._connection = SinkConnection(sink)
        self._on_failure = on_failure
        self._is_stopped = False

    def run(self) -> None:
        while (event := self._events.get()) is not None and not self._is_stopped:
            try:
                self._connection.post(self._origin.heads(event, time.time()), event.body)
                self.sent += 1
            except SinkError as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - the next event may succeed
                self._failed(repr(error))
            self.done += 1
            self.bytes_done += len(event.body)
        self._connection.close()

    def _failed(self, why: str) -> None:
        self.failed += 1
        self.fault = why
        self._on_failure()

    def stop(self) -> None:
        self._is_stopped = True
