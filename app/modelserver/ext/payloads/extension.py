"""The payload log: requests and answers as CloudEvents, sent to a sink."""

from __future__ import annotations

import re
import time
from typing import Any

from modelserver.engine.ids import accept_request_id
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.payloads.event import REQUEST, RESPONSE, Event
from modelserver.ext.payloads.log import PayloadLog
from modelserver.extension import Host
from modelserver.surface.http.answers import JSON
from modelserver.surface.watching import Watch, Watched, Watcher

# The payload log as a watcher of requests.
#
# Requests that are refused before they reach a route (tokens, limits) and failures are not logged
# (kserve reference 10.3). An event's body is the handler's input or result; over gRPC it is the message,
# named by its content type. A response in parts is logged as one.

_BATCH_ID = re.compile(rb"(?:\A|\n)x-batch-id: ([!-~]*)\r")
_ID_HEADER = b"ce-id"
# With it, binary data follows the JSON.
_LENGTH_HEADER = b"inference-header-content-length"


def watch_with(log: PayloadLog) -> Watch:
    """A watch that logs each request."""
    return lambda watched: LoggedRequest(watched, log)


class LoggedRequest(Watcher):
    """A request whose events are logged; they share an id: the request's header ``Ce-Id``, or a new one."""

    __slots__ = (
        "_about",
        "_arrived",
        "_headers",
        "_id",
        "_is_logged",
        "_log",
        "_parts",
        "_size",
        "_status",
        "_type",
        "_watched",
    )

    def __init__(self, watched: Watched, log: PayloadLog) -> None:
        self._about: dict[str, str] = {}
        self._watched, self._log = watched, log
        # A copy, as they may be gone when the response ends.
        self._headers = watched.headers
        self._arrived = time.time()
        ce_id = next((value for name, value in self._headers if name.lower() == _ID_HEADER), b"")
        self._id = accept_request_id(ce_id)
        self._is_logged = False
        self._status, self._type = 0, ""
        self._parts: list[bytes] = []
        self._size = 0

    def _log_request(self, model: str = "") -> None:
        """Logs the request once: when its body is inflated, or when nothing more comes.

        ``model`` answers it; the target may name it only since the body is read.
        """
        if self._is_logged:
            return
        self._is_logged = True
        route = self._watched.target.route
        about = {
            "modelname": route.model or model,
            "modelversion": route.version or "",
            # A query may contain secrets.
            "path": self._watched.target.text.partition("?")[0],
        }
        self._about = {name: value for name, value in about.items() if value}
        if not self._log.requests:
            return
        watched = self._watched
        content_type = watched.content_type
        if not content_type:
            names = {name.lower() for name, _ in watched.headers}
            is_json = watched.target.route.kserve and _LENGTH_HEADER not in names
            content_type = JSON if is_json else "application/octet-stream"
        self._put(REQUEST, self._arrived, content_type, watched.body)

    def _log_response(self, content_type: str, body: bytes, batch_id: str = "") -> None:
        if self._log.responses:
            about = {"batchid": batch_id} if batch_id else {}
            self._put(RESPONSE, time.time(), content_type, body, about)

    def _put(
        self, kind: str, happened: float, content_type: str, body: bytes, about: dict[str, str] | None = None
    ) -> None:
        about = {**self._about, **about} if about else self._about
        self._log.put(Event(kind, self._id, happened, content_type, body, self._headers, about))

    def queued(self, request: Any, model: Any) -> None:
        self._log_request(model.name)

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        self._log_request()
        if 200 <= status < 300:
            match = _BATCH_ID.search(lines)
            self._log_response(content_type, body, match[1].decode() if match else "")

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        self._log_request()
        self._status, self._type = status, content_type

    def part(self, part: bytes) -> None:
        """Collects the parts of a response, up to the size limit."""
        if not self._log.responses:
            return
        self._size += len(part)
        if self._size > self._log.limits.body:
            self._parts.clear()
        else:
            self._parts.append(part)

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        if not complete or not 200 <= self._status < 300 or not self._log.responses:
            return
        if self._size > self._log.limits.body:
            self._log.drop("too_large")
        else:
            self._log_response(self._type, self._watched.join(self._parts))

    def left(self) -> None:
        self._log_request()


async def extend(host: Host) -> None:
    """On with ``payload_log_url``."""
    log = PayloadLog.of(host.settings)
    log.start()
    host.closing.push_async_callback(log.close, host.settings.payload_log_drain_timeout)
    show(log, host.services.metrics)
    host.watch(watch_with(log))


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
