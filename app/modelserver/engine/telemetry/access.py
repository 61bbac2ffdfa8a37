"""The access log (reference 15.5): a request appends a tuple, lines are written a few times a second.

A line is `<time> - /<ip>:<port> "<METHOD> <uri with query> HTTP/1.1" <status> <ms>`; with a status of 400 or
above the request id follows, except with TorchServe's defaults. After a request that is traced, request id
and ` trace_id=<id>` follow. Records have the ids of all their lines as ``request_ids``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from modelserver.engine.telemetry.logs import ACCESS_LOGGER, Stamps
from modelserver.engine.telemetry.text import one_line, shortened, without_credentials

FLUSH_SECONDS = 0.25
FLUSH_ENTRIES = 512
MAX_TARGET = 4096  # characters
# Cached request and status texts, most of which repeat.
MAX_KNOWN = 256

_HEALTH = {"/ping", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "grpc.health.v1.Health/Check"}

OnResponse: TypeAlias = "Callable[[str, str, str, str, int, float, str], None]"
"""Called for each answer with the arguments of :meth:`AccessLog.log`."""
_Entry: TypeAlias = tuple[float, str, str, str, str, int, float, str]

_access = logging.getLogger(ACCESS_LOGGER)


class AccessLog:
    """Collects access lines and writes them together; an idle server has no timer.

    ``stamped``: lines begin with their time and are written as one record (Logs.stamped); otherwise, under
    the user's logging configuration, each line is a separate record. ``names_failures``: lines of failures
    end with the request id. Without ``probes``, health checks that succeed have no line.
    """

    def __init__(
        self,
        *,
        stamped: bool = True,
        names_failures: bool = True,
        probes: bool = True,
        logger: logging.Logger = _access,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._stamp = Stamps()
        self._stamped = stamped
        self._names_failures = names_failures
        self._probes = probes
        self._entries: list[_Entry] = []
        # Of answers whose lines are not written yet, by request id.
        self._traces: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @staticmethod
    def is_on() -> bool:
        """Whether lines are written: the operator's configuration of logging may turn them off."""
        return _access.isEnabledFor(logging.INFO)

    @staticmethod
    def turn(*, on: bool) -> None:
        """Whether this process writes lines from now on."""
        _access.setLevel(logging.INFO if on else logging.CRITICAL)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts writing by timer on ``loop``; until then, lines are only collected."""
        self._loop = loop
        if self._entries:
            self._arm()

    def log(  # noqa: PLR0917 -- positional calls are quicker, and this runs for each request
        self,
        client: str,
        method: str,
        target: str,
        http_version: str,
        status: int,
        seconds: float,
        request_id: str = "",
    ) -> None:
        """Logs a response: ``client`` is `ip:port`, ``target`` the path and query, ``http_version`` `1.1`.

        For gRPC: method `gRPC`, target `service/method`, version `2.0`, the status code's number, and an id
        only if the call failed.
        """
        entries = self._entries
        entries.append((self._clock(), client, method, target, http_version, status, seconds, request_id))
        if self._timer is None:
            self._arm()
        if len(entries) >= FLUSH_ENTRIES:
            self.flush()

    def counting(self, count: Callable[..., None]) -> OnResponse:
        """Logs each response, and counts its status; with its target where it may be a health check's."""
        log = self.log

        def on_response(  # noqa: PLR0917 - called for each answer
            client: str, method: str, target: str, version: str, status: int, seconds: float, request_id: str
        ) -> None:
            # Checks come by GET: most predictions do not, and need no look at their path.
            if method == "GET" or method == "HEAD":  # noqa: PLR1714 - the quickest for the others
                count(status, target)
            else:
                count(status)
            log(client, method, target, version, status, seconds, request_id)

        return on_response

    def traced(self, request_id: str, trace_id: str) -> None:
        """Names the trace in the line of the answer that ends next with this request id."""
        self._traces[request_id] = trace_id

    def flush(self) -> None:
        """Writes the collected lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._entries = self._entries, []
        traces, self._traces = self._traces, {}
        if not self._probes:
            entries = [entry for entry in entries if entry[3] not in _HEALTH or entry[5] not in {0, 200}]
        if not entries or not self._logger.isEnabledFor(logging.INFO):
            return
        if self._stamped:
            stamp = self._stamp
            line = self._line
            text = "\n".join([f"{stamp(entry[0])} - {line(entry, traces)}" for entry in entries])
            self._logger.info("%s", text, extra={"request_ids": [entry[-1] for entry in entries]})
        else:
            for entry in entries:
                self._logger.handle(self._record(entry, traces))

    def close(self) -> None:
        """Writes the rest; later lines are written at once."""
        self._closed = True
        self._loop = None
        self.flush()

    def _arm(self) -> None:
        if self._loop is not None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self.flush)
        elif self._closed:
            self.flush()

    def _record(self, entry: _Entry, traces: dict[str, str]) -> logging.LogRecord:
        extra: dict[str, object] = {"request_ids": [entry[-1]]}
        if trace_id := traces.get(entry[-1]):
            extra["trace_id"] = trace_id
        name, line = self._logger.name, self._line(entry, traces)
        record = self._logger.makeRecord(name, logging.INFO, __file__, 0, "%s", (line,), None, extra=extra)
        record.created = entry[0]
        record.msecs = float(int(entry[0] * 1000) % 1000)
        return record

    def _line(self, entry: _Entry, traces: dict[str, str]) -> str:
        _, client, method, target, http_version, status, seconds, request_id = entry
        line = f"/{client} {_what(method, target, http_version, status)} {int(seconds * 1000)}"
        if traces and (trace_id := traces.get(request_id)):
            return f"{line} {request_id} trace_id={trace_id}"
        if not request_id or not self._names_failures or (status < 400 and method != "gRPC"):
            return line
        return f"{line} {request_id}"


@lru_cache(MAX_KNOWN)
def _what(method: str, target: str, http_version: str, status: int) -> str:
    if "@" in target or "%40" in target:
        target = without_credentials(target)  # before shortening, which could cut off the @
    if len(target) > MAX_TARGET:
        target = shortened(target, MAX_TARGET)
    if '"' in target:
        target = target.replace('"', "%22")
    text = f'"{method} {target} HTTP/{http_version}" {status}'
    return text if text.isprintable() else one_line(text)
