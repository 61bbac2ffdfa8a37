"""What all requests of the ASGI application share: id, headers, limits, errors as JSON, log and counters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from modelserver.engine.ids import accept_request_id, make_uuid
from modelserver.engine.telemetry.access import OnResponse
from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.errors import InternalError, ModelServerError, PayloadTooLarge
from modelserver.surface.http.answers import ALWAYS, JSON, error_body, form_of
from modelserver.surface.http.cors import Cors, is_preflight
from modelserver.surface.http.exchange import check_query
from modelserver.surface.http.head import announced_length
from modelserver.surface.http.sockets import address_text

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_log = logging.getLogger("modelserver.api")

Check = Callable[[str, str, Iterable[tuple[bytes, bytes]]], None]


class Edge:
    """Wraps the application of one listener.

    Args:
        app: the application.
        on_response: called for each answer.
        max_body: maximum size of a body in bytes.
        cors: headers for pages of other origins; with them, preflight requests are answered here.
        check: called with method, path and headers; raises for requests that are not allowed.
    """

    def __init__(
        self,
        app: ASGIApp,
        on_response: OnResponse,
        max_body: int,
        cors: Cors | None = None,
        check: Check | None = None,
    ) -> None:
        self._app = app
        self._on_response = on_response
        self._max_body = max_body
        self._cors = cors
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = loop_watch.request = _Call(scope, receive, send, self._max_body, self._cors)
        started = time.perf_counter()
        is_reported = True
        if len(scope["path"]) > 1:
            scope["path"] = scope["path"].rstrip("/") or scope["path"]
        try:
            if self._cors is not None and is_preflight(scope["method"], scope["headers"]):
                await call.allow()
            else:
                if self._check is not None:
                    self._check(scope["method"], scope["path"], scope["headers"])
                check_query(scope["query_string"])
                await self._app(scope, call.receive, call.send)
        except ClientDisconnect:
            # The client left before its request was complete: there is nothing to answer, log or count.
            is_reported = False
        except ModelServerError as error:
            await call.fail(error)
        except Exception:  # noqa: BLE001 - the last place where an error becomes an answer
            _log.exception("Failure while answering %s %s", scope["method"], scope["path"])
            await call.fail(InternalError())
        finally:
            if is_reported:
                self._report(scope, call, time.perf_counter() - started)

    def _report(self, scope: Scope, call: _Call, seconds: float) -> None:
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        self._on_response(
            address_text(scope["client"]),
            scope["method"],
            target.decode("latin-1"),
            scope["http_version"],
            call.status,
            seconds,
            call.request_id,
        )


class _Call:
    """One request on its way through the application."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int, cors: Cors | None) -> None:
        header = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        self.request_id = accept_request_id(header) if header else make_uuid()
        self._form = form_of(scope["path"])
        self._scope = scope
        self._receive = receive
        self._send = send
        self._max_body = max_body
        self._cors = cors
        self._received = 0
        self._announced = announced_length(scope["headers"])
        self.status = 500
        self._head_sent = False

    def __str__(self) -> str:
        """Method and route, without the names in it."""
        route = getattr(self._scope.get("route"), "path", "of no route")
        return f"{self._scope['method']} {route}"

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if max(self._received, self._announced) > self._max_body:
                raise PayloadTooLarge.of(self._max_body)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head_sent = True
            self.status = message["status"]
            headers: list[Any] = [*message.get("headers", ()), *ALWAYS]
            headers.append((b"x-request-id", self.request_id.encode()))
            if self._cors is not None:
                headers += self._cors.missing(name for name, _ in headers)
            message = {**message, "headers": headers}
        await self._send(message)

    async def allow(self) -> None:
        """Answers a preflight request: the headers of every answer say what is allowed."""
        await self._answer(200, b"", [])

    async def fail(self, error: ModelServerError) -> None:
        if self._head_sent:
            return
        status, body = error_body(error, form=self._form)
        await self._answer(status, body, [(b"content-type", JSON.encode()), *error.headers])

    async def _answer(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        headers.append((b"content-length", b"%d" % len(body)))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
