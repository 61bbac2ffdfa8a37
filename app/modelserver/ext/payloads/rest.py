"""The payload log of the hot routes, used only if a sink is configured."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from modelserver.ext.payloads.call import LoggedCall
from modelserver.surface.http.answers import JSON
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.inference.v2 import BINARY, header_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.ext.payloads.log import PayloadLog
    from modelserver.surface.http.exchange import HotRoutes, Target

_BATCH_ID = re.compile(rb"(?:\A|\n)x-batch-id: ([!-~]*)\r")


class LoggedRoutes:
    """Hot routes whose requests and successful answers are logged.

    Requests that are refused before they reach a route (tokens, limits) and error answers are not logged
    (kserve reference 10.3).
    """

    def __init__(self, hot: HotRoutes, log: PayloadLog) -> None:
        self._hot = hot
        self._log = log

    def find(self, url: bytes) -> Target | None:
        return self._hot.find(url)

    def serve(self, exchange: Exchange) -> None:
        logged = LoggedExchange(exchange, self._log)
        try:
            self._hot.serve(logged)
        finally:
            # A body that is inflated aside is logged with the answer.
            logged.is_read_later = bool(logged.encoding) and not exchange.answered
            if not logged.is_read_later:
                logged.asked()


class LoggedExchange(Exchange):
    """An exchange whose answer is logged."""

    __slots__ = ("_call", "_exchange", "_status", "_type", "is_read_later")

    def __init__(self, exchange: Exchange, log: PayloadLog) -> None:
        self._exchange = exchange
        super().__init__(exchange.target, exchange.method, exchange.http_version, exchange.body)
        self.content_type = exchange.content_type
        self.encoding = exchange.encoding
        self.deadline_ms = exchange.deadline_ms
        self.request_id = exchange.request_id
        self.watcher = exchange.watcher
        route = exchange.target.route
        about = (
            ("modelname", route.model),
            ("modelversion", route.version or ""),
            # A query may contain secrets.
            ("path", exchange.target.text.partition("?")[0]),
        )
        self._call = LoggedCall(log, exchange.headers, about)
        self.is_read_later = False
        self._status = 0
        self._type = ""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._exchange.headers

    @property
    def on_disconnect(self) -> Callable[[], None] | None:
        return self._exchange.on_disconnect

    @on_disconnect.setter
    def on_disconnect(self, act: Callable[[], None] | None) -> None:
        self._exchange.on_disconnect = act

    def packed_headers(self) -> bytes:
        return self._exchange.packed_headers()

    def unsent(self) -> int:
        return self._exchange.unsent()

    def asked(self) -> None:
        """Logs the request, with its body as the handler gets it, inflated."""
        content_type = self.content_type
        if not content_type:
            is_json = self.target.route.kserve and header_length(self) is None
            content_type = JSON if is_json else BINARY
        self._call.asked(self.body, content_type)

    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        if self.is_read_later and not self._exchange.answered:
            self.asked()
        if not self._exchange.answered and 200 <= status < 300:
            found = _BATCH_ID.search(extra)
            self._call.answered(content_type, body, found[1].decode() if found else "")
        self._exchange.reply(status, body, content_type, extra, phrase)

    def begin(self, status: int, content_type: str = "", extra: bytes = b"", phrase: str = "") -> None:
        if self.is_read_later and not self._exchange.answered:
            self.asked()
        if not self._exchange.answered:
            self._status, self._type = status, content_type
        self._exchange.begin(status, content_type, extra, phrase)

    def send(self, part: bytes) -> None:
        if self._exchange.begun:
            self._call.part(part)
        self._exchange.send(part)

    def end(self, complete: bool = True) -> None:
        if self._exchange.begun and complete and 200 <= self._status < 300:
            body = self._call.whole()
            if body is not None:
                self._call.answered(self._type, body)
        self._exchange.end(complete)
