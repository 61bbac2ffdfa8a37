"""The hot routes: predictions and explanations in all of TorchServe's forms, and KServe's V1 (reference 6.1).

An endpoint here turns a body into rows, hands them to the model's pool, and turns the answers into a body.
Bodies are passed on as bytes; the worker decodes them and encodes the answers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec

from modelserver.api import v1
from modelserver.api.answers import JSON, header_block
from modelserver.api.content import form_field, inflate
from modelserver.api.exchange import Target, read_target
from modelserver.batching.request import Request
from modelserver.errors import BadRequest, HandlerError, ModelServerError, PayloadTooLarge
from modelserver.wire.messages import BODY, INSTANCE, Answer, Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.api.exchange import Exchange
    from modelserver.models.registry import ModelVersion, Registry

_encode_headers = msgspec.msgpack.Encoder().encode

# URLs whose meaning is remembered, and the bytes that one may have for that.
_TARGETS_KEPT = 1024
_LONGEST_KEPT = 512

# Of one V1 request: its instances, and the bytes of headers and parameters repeated for each of them.
MAX_INSTANCES = 10_000
MAX_REPEATED = 64 << 20

# First segments that never name a model in the legacy form `/{model}/predict`.
_NO_MODELS = frozenset({"models", "v1", "v2", "wfpredict", "workflows"})


@dataclass(frozen=True, slots=True)
class Route:
    """What a path asks for. ``v1``: bodies are KServe's V1. ``query``: query parameters reach the handler."""

    model: str
    version: str | None = None
    url_path: str = ""
    explain: bool = False
    v1: bool = False
    query: bool = False


class InferenceApi:
    """Serves the hot routes of the inference port.

    Args:
        registry: of the models.
        max_body: bytes that a body may have, also once inflated.
    """

    def __init__(self, registry: Registry, max_body: int) -> None:
        self._registry = registry
        self._max_body = max_body
        self._targets: dict[bytes, Target] = {}

    def find(self, url: bytes) -> Target | None:
        """What the URL asks for if its path is one of inference."""
        target = self._targets.get(url)
        return target or self._read(url)

    def _read(self, url: bytes) -> Target | None:
        target = read_target(url)
        route = None if target is None else parse_route(target.path)
        if target is None or route is None:
            return None
        target = replace(target, route=route)
        if len(url) <= _LONGEST_KEPT:
            if len(self._targets) >= _TARGETS_KEPT:
                self._targets.clear()
            self._targets[url] = target
        return target

    def serve(self, exchange: Exchange) -> None:
        """Answers one request, now if it is refused, otherwise when its batch comes back."""
        route: Route = exchange.target.route
        try:
            if exchange.encoding:
                exchange.body = inflate(exchange.body, exchange.encoding, self._max_body)
            model = self._registry.get(route.model or self._unnamed(exchange), route.version)
            model.metrics.request(route.version is not None)
            self._submit(exchange, route, model)
        except ModelServerError as error:
            exchange.fail(error, kserve=route.v1)

    def _unnamed(self, exchange: Exchange) -> str:
        """The model of ``/invocations``: the query's, the form's, or the only one loaded at start."""
        named = dict(parse_qsl(exchange.target.query.decode("latin-1"))).get("model_name")
        named = named or form_field(exchange.body, exchange.content_type, "model_name")
        if named:
            return named
        at_startup = [model.name for model in self._registry.versions() if model.loaded_at_startup]
        if len(at_startup) != 1:
            raise BadRequest("Parameter model_name is required.")
        return at_startup[0]

    def _submit(self, exchange: Exchange, route: Route, model: ModelVersion) -> None:
        split = _split(exchange.body, model) if route.v1 else None
        now = time.monotonic()
        headers = msgspec.Raw(_encode_headers(exchange.headers))
        if split is None:
            query = None
            if route.query:
                query = parse_qsl(exchange.target.query.decode("latin-1"), keep_blank_values=True)
            row = Row(
                exchange.request_id, len(exchange.body), BODY, exchange.content_type, headers, query,
                route.url_path, route.explain,
            )  # fmt: skip
            rows, bodies, key = [row], [exchange.body], (route.explain, b"")
        else:
            bodies = split.instances
            check_size(len(bodies), len(split.extra) + len(bytes(headers)))
            rows = [
                Row(
                    exchange.request_id, len(b), INSTANCE, JSON, headers, None, "", route.explain, split.extra
                )
                for b in bodies
            ]
            key = (route.explain, split.extra)
        request = Request(
            exchange.request_id, rows, bodies, now, key=key, deadline=_deadline(now, model, exchange)
        )
        reply = _Reply(exchange, model, route, time.monotonic)
        request.on_done = reply.split if split is not None else reply.whole
        model.pool.submit(request, route.version)
        if not request.done:
            exchange.on_disconnect = lambda: model.pool.cancel(request)


class _Reply:
    """Turns an ended request into the answer to its exchange."""

    __slots__ = ("_clock", "_exchange", "_model", "_route")

    def __init__(
        self, exchange: Exchange, model: ModelVersion, route: Route, clock: Callable[[], float]
    ) -> None:
        self._exchange = exchange
        self._model = model
        self._route = route
        self._clock = clock

    def whole(self, request: Request) -> None:
        """The one answer is the body."""
        answered = None if request.error is not None else request.answers[0]
        if answered is None:
            self._error(request)
            return
        answer, content = answered
        if answer.failed:
            self._failed(request, answer, content)
            return
        extra = self._extra(request)
        if answer.headers:
            extra += header_block(answer.headers)
        self._exchange.reply(answer.status, content, answer.content_type, extra, answer.phrase)

    def split(self, request: Request) -> None:
        """The answers are the predictions, or the first failure is everybody's."""
        if request.error is not None:
            self._error(request)
            return
        status, headers, predictions = 200, None, []
        for index, answered in enumerate(request.answers):
            assert answered is not None  # noqa: S101 - a request ends without an error when all are there
            answer, content = answered
            if answer.failed:
                where = b"instances[%d]: " % index if len(request.rows) > 1 else b""
                self._failed(request, answer, where + content)
                return
            if answer.status != 200:
                status = answer.status
            headers = headers or answer.headers
            predictions.append(content)
        body = v1.join(predictions, request.batch_id if self._model.batches else None)
        extra = self._extra(request)
        if headers:
            extra += header_block(headers)
        self._exchange.reply(status, body, JSON, extra)

    def _failed(self, request: Request, answer: Answer, content: bytes) -> None:
        error = HandlerError(content.decode("utf-8", "replace"), answer.status)
        # A handler that failed on a body that was not split: the worker could not know it came by V1.
        error.kserve_status = 500 if answer.status == 503 and request.rows[0].kind == BODY else None
        error.type = answer.error_type  # type: ignore[misc]  # the worker names it
        self._exchange.fail(error, kserve=self._route.v1, extra=self._extra(request))

    def _error(self, request: Request) -> None:
        error = request.error
        if not isinstance(error, ModelServerError):
            error = HandlerError(str(error), 500)
        extra = _batch_headers(request).encode() if request.batch_id else b""
        self._exchange.fail(error, kserve=self._route.v1, extra=extra)

    def _extra(self, request: Request) -> bytes:
        arrived = request.arrived
        queue = (request.dispatched or arrived) - arrived
        self._model.metrics.answered(self._clock() - arrived, queue, self._route.version is not None)
        return (
            f"{_batch_headers(request)}server-timing: queue;dur={queue * 1e3:.3f}, "
            f"inference;dur={request.handler_time * 1e3:.3f}\r\n"
        ).encode()


def _batch_headers(request: Request) -> str:
    return f"x-batch-id: {request.batch_id}\r\nx-batch-size: {request.batch_size}\r\n"


def check_size(instances: int, repeated: int) -> None:
    """Refuses what is small as a body and large as work; ``repeated`` bytes travel with each instance.

    Raises:
        PayloadTooLarge: names the limit.
    """
    if instances > MAX_INSTANCES:
        raise PayloadTooLarge(f"The request has {instances} instances, {MAX_INSTANCES} are allowed.")
    if instances * repeated > MAX_REPEATED:
        raise PayloadTooLarge(
            f"The {repeated} bytes of headers and parameters are needed for each of {instances} instances, "
            f"which makes more than the {MAX_REPEATED} bytes that are allowed; send fewer instances at once."
        )


def _split(body: bytes, model: ModelVersion) -> v1.V1Body | None:
    """The instances of a V1 body, or None if the model takes the body as it is (design section 9, "Rows")."""
    if model.splits == "never":
        return None
    try:
        return v1.split(body)
    except BadRequest:
        if model.splits == "always":
            raise
        return None


def _deadline(now: float, model: ModelVersion, exchange: Exchange) -> float | None:
    seconds = model.options.request_timeout
    if exchange.deadline_ms:
        own = exchange.deadline_ms / 1000.0
        seconds = own if seconds is None else min(own, seconds)
    return None if seconds is None else now + seconds


def parse_route(path: str) -> Route | None:
    """The route of a decoded path, or None if it is none of inference (reference 6.1)."""
    segments = path.split("/")[1:]
    while segments and not segments[-1]:
        segments.pop()
    match segments:
        case ["predictions" | "explanations" as verb, model, *rest] if model:
            version = rest[0] if rest else None
            return Route(model, version, "/".join(rest[1:]), explain=verb == "explanations")
        case ["v1", "models", name] if ":" in name:
            model, _, action = name.partition(":")
            if action in ("predict", "explain") and model:
                return Route(model, explain=action == "explain", v1=True)
        case ["invocations"]:
            return Route("", query=True)
        case ["models", model, "invoke"] if model:
            return Route(model, query=True)
        case [first, *_] if not first or first in _NO_MODELS:
            return None
        case [model, "predict"]:
            return Route(model, query=True)
        case [model, version, "predict"]:
            return Route(model, version, query=True)
    return None
