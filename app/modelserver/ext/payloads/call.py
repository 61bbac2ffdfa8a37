"""One request and its response in the payload log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from modelserver.engine.ids import accept_request_id
from modelserver.ext.payloads.event import REQUEST, RESPONSE, Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from modelserver.ext.payloads.log import PayloadLog

_ID_HEADER = b"ce-id"


class LoggedCall:
    """Both events share an id: the request's header ``Ce-Id``, or a new one.

    ``headers`` are the request's; ``about`` are attributes of both events, empty values are left out.
    """

    __slots__ = ("_about", "_arrived", "_headers", "_log", "_parts", "_size", "id")

    def __init__(
        self, log: PayloadLog, headers: Sequence[tuple[bytes, bytes]], about: Iterable[tuple[str, str]]
    ) -> None:
        self._log = log
        self._headers = headers
        self._about = {name: value for name, value in about if value}
        self._arrived = time.time()
        self._parts: list[bytes] = []
        self._size = 0
        ce_id = next((value for name, value in headers if name.lower() == _ID_HEADER), b"")
        self.id = accept_request_id(ce_id)

    def request(self, body: bytes, content_type: str) -> None:
        """Logs the request."""
        if self._log.requests:
            self._log.put(
                Event(REQUEST, self.id, self._arrived, content_type, body, self._headers, self._about)
            )

    def part(self, body: bytes) -> None:
        """Collects a part of the response, up to the size limit."""
        if not self._log.responses:
            return
        self._size += len(body)
        if self._size > self._log.limits.body:
            self._parts.clear()
        else:
            self._parts.append(body)

    def response(self, content_type: str, body: bytes, batch_id: str = "") -> None:
        """Logs the response."""
        if self._log.responses:
            about = {**self._about, "batchid": batch_id} if batch_id else self._about
            self._log.put(Event(RESPONSE, self.id, time.time(), content_type, body, self._headers, about))

    def parts(self) -> list[bytes] | None:
        """The collected parts; None if responses are not logged, or they are too large, which is counted."""
        if not self._log.responses:
            return None
        if self._size > self._log.limits.body:
            self._log.drop("too_large")
            return None
        return self._parts
