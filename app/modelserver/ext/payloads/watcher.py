"""The payload log as a watcher of requests.

Requests that are refused before they reach a route (tokens, limits) and failures are not logged (kserve
reference 10.3). An event's body is the handler's input or result; over gRPC it is the message, named by its
content type. A response in parts is logged as one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from modelserver.ext.payloads.call import LoggedCall
from modelserver.surface.http.answers import JSON
from modelserver.surface.inference.v2 import BINARY, header_length
from modelserver.surface.watching import Watcher

if TYPE_CHECKING:
    from modelserver.ext.payloads.log import PayloadLog
    from modelserver.surface.watching import Watch, Watched

_BATCH_ID = re.compile(rb"(?:\A|\n)x-batch-id: ([!-~]*)\r")


def watch_with(log: PayloadLog) -> Watch:
    """A watch that logs each request."""
    return lambda watched: LoggedRequest(watched, log)


class LoggedRequest(Watcher):
    """A request whose events are logged."""

    __slots__ = ("_call", "_is_logged", "_status", "_type", "_watched")

    def __init__(self, watched: Watched, log: PayloadLog) -> None:
        route = watched.target.route
        about = (
            ("modelname", route.model),
            ("modelversion", route.version or ""),
            # A query may contain secrets.
            ("path", watched.target.text.partition("?")[0]),
        )
        self._call = LoggedCall(log, watched.headers, about)
        self._watched = watched
        self._is_logged = False
        self._status = 0
        self._type = ""

    def _log_request(self) -> None:
        """Logs the request once: when its body is inflated, or when nothing more comes."""
        if self._is_logged:
            return
        self._is_logged = True
        watched = self._watched
        content_type = watched.content_type
        if not content_type:
            is_json = watched.target.route.kserve and header_length(watched.headers) is None
            content_type = JSON if is_json else BINARY
        self._call.request(watched.body, content_type)

    def queued(self, request: Any, model: Any) -> None:
        self._log_request()

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        self._log_request()
        if 200 <= status < 300:
            match = _BATCH_ID.search(lines)
            self._call.response(content_type, body, match[1].decode() if match else "")

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        self._log_request()
        self._status, self._type = status, content_type

    def part(self, part: bytes) -> None:
        self._call.part(part)

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        if complete and 200 <= self._status < 300:
            parts = self._call.parts()
            if parts is not None:
                self._call.response(self._type, self._watched.join(parts))

    def left(self) -> None:
        self._log_request()
