"""The console's routes. The page has no data and is open to everybody; the rest needs a management token."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from modelserver import __version__
from modelserver.errors import BadRequest, MethodNotAllowed, PayloadTooLarge, ResourceNotFound
from modelserver.ext.console.arrivals import arrivals_of
from modelserver.ext.console.broadcast import Broadcast
from modelserver.ext.console.devices import Devices
from modelserver.ext.console.estimates import EstimateRequest, Estimates
from modelserver.ext.console.facts import ConsoleState
from modelserver.ext.console.logs.routes import LogRoute
from modelserver.ext.console.pages import DATA_HEADERS, Pages
from modelserver.ext.console.tries import answer_try, is_there_for
from modelserver.extension import Endpoints
from modelserver.models.options.table import OPTIONS
from modelserver.surface.auth.scopes import Scope as TokenScope
from modelserver.surface.http.answers import JSON

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from modelserver.ext.console.logs.ring import LogRing
    from modelserver.ext.console.minutes import Minutes

_PATH = "/console"
_STATIC = f"{_PATH}/static/"
_TRY = f"{_PATH}/try/"
# Bytes of a request for an estimate.
_MOST_BYTES = 1 << 14
# Characters of a viewer's name that count.
_LONGEST_NAME = 40

_read_estimate_request = msgspec.json.Decoder(EstimateRequest).decode


class Console:
    """An ASGI application for all paths from ``/console`` on; nobody watches tries of models."""

    def __init__(self, endpoints: Endpoints, ring: LogRing, minutes: Minutes) -> None:
        self._endpoints = endpoints
        self._services = services = endpoints.services
        self._minutes = minutes
        self._pages = Pages()
        self._state = ConsoleState(services.registry, services.metrics)
        self._broadcast = Broadcast(self._state)
        self._estimates = Estimates()
        self._logs = LogRoute(ring, self._versions_of)
        self._devices = Devices(services.registry, services.settings)
        self._routes: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "estimate": ("POST", self._estimate),
            "events": ("GET", self._events),
            "opened": ("PUT", self._opened),
            "logs": ("GET", lambda request: self._logs.respond(request, self._allowed(request))),
            "history": ("GET", self._history),
            "settings": ("GET", self._settings),
            "devices": ("GET", self._read_devices),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._response(scope["path"], Request(scope, receive))
        await response(scope, receive, send)

    def close(self) -> None:
        """Ends the streams of events and the helper process."""
        self._broadcast.close()
        self._logs.close()
        self._estimates.close()

    async def _response(self, path: str, request: Request) -> Response:
        if path == _PATH or path.startswith(_STATIC):
            return self._page(path, request)
        if path.startswith(_TRY):
            _check_method(request, "POST")
            return await answer_try(request, self._endpoints)
        method, respond = self._routes.get(path.removeprefix(f"{_PATH}/"), ("", None))
        if respond is None:
            raise ResourceNotFound
        _check_method(request, method)
        return await respond(request)

    def _page(self, path: str, request: Request) -> Response:
        _check_method(request, "GET", "HEAD")
        if path == _PATH and request.scope["raw_path"].endswith(b"/"):
            # Its files are named relative to it, so that it works behind a proxy's prefix.
            return RedirectResponse("../console", 308)
        page = self._pages.get("index.html" if path == _PATH else path.removeprefix(_STATIC))
        if page is None:
            raise ResourceNotFound
        return page

    async def _events(self, request: Request) -> Response:
        query = request.query_params
        viewer, version = query.get("viewer", "")[:_LONGEST_NAME], query.get("version", "")
        events = self._broadcast.watch(self._allowed(request), viewer, version)
        return StreamingResponse(events, headers={**DATA_HEADERS, "content-type": "text/event-stream"})

    async def _opened(self, request: Request) -> Response:
        """A viewer opens the page of a version: its stream has all figures from now on; here is the first."""
        version = request.query_params.get("version", "")
        self._broadcast.open(request.query_params.get("viewer", "")[:_LONGEST_NAME], version)
        return _json(self._state.opened(version))

    def _versions_of(self, model: str) -> tuple[str, ...]:
        return tuple(each.version for each in self._services.registry.versions() if each.name == model)

    async def _history(self, request: Request) -> Response:
        """The minutes of a version, or of all, in the last ``seconds``."""
        text = request.query_params.get("seconds", "3600")
        if not re.fullmatch(r"\d{1,6}", text):
            raise BadRequest(f"seconds={text[:40]}: a whole number is needed")
        document = await self._minutes.document(request.query_params.get("version", ""), int(text))
        return Response(document, headers={**DATA_HEADERS, "content-type": JSON})

    def _allowed(self, request: Request) -> Callable[[], bool]:
        """Whether the request's token is still valid; the stream may outlast it."""
        tokens = self._services.tokens
        if tokens is None:
            return lambda: True
        header = request.headers.get("authorization", "").encode("latin-1")
        return lambda: tokens.verifier.accepts(TokenScope.MANAGEMENT, header)

    async def _read_devices(self, _: Request) -> Response:
        return _json(await self._devices.read())

    async def _settings(self, _: Request) -> Response:
        services = self._services
        settings = [
            {"name": key.name, "group": key.group, "value": value, "source": source, "about": key.summary}
            for key, value, source in services.settings.as_text(services.registry.builder.sources)
            if not key.is_for_java
        ]
        options = {row.key: row.summary for row in OPTIONS.values()}
        return _json({"version": __version__, "settings": settings, "options": options})

    async def _estimate(self, request: Request) -> Response:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                raise PayloadTooLarge(f"More than {_MOST_BYTES} bytes.")
        try:
            wish = _read_estimate_request(body)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"This cannot be estimated: {error}") from None
        model = self._services.registry.get(wish.model, wish.version)
        now = time.monotonic()
        measured = arrivals_of(model, now).measured(now, model)
        making = asyncio.ensure_future(self._estimates.make(wish, measured))
        try:
            is_there = await is_there_for(making, request)
        finally:
            making.cancel()
        return _json(making.result()) if is_there else Response(status_code=499)


def _check_method(request: Request, *allowed: str) -> None:
    if request.method not in allowed:
        raise MethodNotAllowed(", ".join(allowed))


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers={**DATA_HEADERS, "content-type": JSON})
