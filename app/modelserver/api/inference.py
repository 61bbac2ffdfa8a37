"""The hot routes: predictions and explanations in all of TorchServe's forms, KServe's V1 and V2.

An endpoint here turns a body into rows, hands them to the model's pool, and turns the answers into a body.
Bodies are passed on as bytes; the worker decodes them and encodes the answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from modelserver.api import v1
from modelserver.api.answers import JSON, header_block
from modelserver.api.aside import Aside
from modelserver.api.content import form_field, inflate, read_query
from modelserver.api.exchange import Target, read_target
from modelserver.api.open_inference import (
    SECONDS,
    encode_answer,
    read_inference,
    read_inference_aside,
    said_beside,
)
from modelserver.api.sequences import read_sequence, sequence_headers
from modelserver.batching.queue import AtOnce
from modelserver.batching.request import Request
from modelserver.batching.sequences import SequencedRequest
from modelserver.errors import BadRequest, HandlerError, MethodNotAllowed, ModelServerError
from modelserver.telemetry.stalls import served
from modelserver.tensors import weight
from modelserver.tensors.limits import RequestLimits
from modelserver.wire.messages import BODY, INSTANCE, Answer, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelserver.api.exchange import Exchange
    from modelserver.api.open_inference import Answering, Inference
    from modelserver.models.registry import ModelVersion, Registry
    from modelserver.offload.helpers import Helpers

_log = logging.getLogger("modelserver.api")

# URLs whose meaning is remembered, and the bytes that one may have for that.
_TARGETS_KEPT = 1024
_LONGEST_KEPT = 512

# Bytes of a compressed body that are inflated on the event loop; they make a thousand times as many at most.
_LIGHT_COMPRESSED = 1 << 12

# Methods that predict; the OpenAPI document names them.
_USUAL = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE"})

# First segments that never name a model in the legacy form `/{model}/predict`.
_NO_MODELS = frozenset({"models", "v1", "v2", "wfpredict", "workflows"})


@dataclass(frozen=True, slots=True)
class Route:
    """What a path asks for. ``v1``, ``v2``: the body is KServe's. ``query``: it reaches the handler."""

    model: str
    version: str | None = None
    url_path: str = ""
    explain: bool = False
    v1: bool = False
    query: bool = False
    v2: bool = False

    @property
    def kserve(self) -> bool:
        """Whether errors are told as KServe's clients read them."""
        return self.v1 or self.v2

    @property
    def template(self) -> str:
        """The path without the names in it."""
        verb = "explain" if self.explain else "infer" if self.v2 else "predict"
        version = "/versions/{version}" if self.version else ""
        if self.v1:
            return f"/v1/models/{{name}}:{verb}"
        if self.v2:
            return f"/v2/models/{{name}}{version}/{verb}"
        if self.query:
            return "/models/{name}/invoke" if self.model else "/invocations"
        return f"/{'explanations' if self.explain else 'predictions'}/{{name}}"


class InferenceApi:
    """Serves the hot routes of the inference port.

    Args:
        registry: of the models.
        max_body: bytes that a body may have, also once inflated.
        aside: takes what would hold up the event loop.
        limits: of what one request may bring.
    """

    def __init__(
        self,
        registry: Registry,
        max_body: int,
        aside: Aside | None = None,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 - it never changes
    ) -> None:
        self._registry = registry
        self._max_body = max_body
        self._limits = limits
        self._aside = aside or Aside(max_body)
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
        served.request = exchange
        route: Route = exchange.target.route
        model: ModelVersion | None = None
        try:
            if exchange.method != b"POST":
                _check_method(exchange.method, route)
            if exchange.encoding or not route.model:
                _check_light(exchange)
            if exchange.encoding:
                exchange.body = inflate(exchange.body, exchange.encoding, self._max_body)
            model = self._find(route.model or _named(exchange) or self._only_one(), route)
            split = _split(exchange.body, model) if route.v1 else None
            asked = read_inference(exchange, model, self._limits) if route.v2 else None
            self._submit(exchange, route, model, split, asked, time.monotonic())
        except weight.TooHeavy:
            self._serve_aside(exchange, route, model)
        except ModelServerError as error:
            _refuse(exchange, route, model, error)

    def _find(self, name: str, route: Route) -> ModelVersion:
        model = self._registry.get(name, route.version)
        model.metrics.request(route.version is not None)
        return model

    def _serve_aside(self, exchange: Exchange, route: Route, model: ModelVersion | None) -> None:
        """The same for a request that would hold up the event loop; ``model`` if it was found already."""

        async def read() -> None:
            nonlocal model
            now = time.monotonic()
            if model is None:
                encoding, exchange.encoding = exchange.encoding, b""
                exchange.body = await asyncio.to_thread(inflate, exchange.body, encoding, self._max_body)
                name: str | None = route.model or await asyncio.to_thread(_named, exchange)
                model = self._find(name or self._only_one(), route)
            aside = self._aside.helpers, self._limits
            split = await _split_aside(exchange.body, model, *aside) if route.v1 else None
            asked = await read_inference_aside(exchange, model, *aside) if route.v2 else None
            exchange.on_disconnect = None
            self._submit(exchange, route, model, split, asked, now)

        exchange.on_disconnect = self._aside.start(
            len(exchange.body), read(), lambda error: _refuse(exchange, route, model, error)
        )

    def _only_one(self) -> str:
        """The model of ``/invocations`` where the request names none: the only one loaded at start."""
        at_startup = [model.name for model in self._registry.versions() if model.loaded_at_startup]
        if len(at_startup) != 1:
            raise BadRequest("Parameter model_name is required.")
        return at_startup[0]

    def _submit(  # noqa: PLR0917 - called for each request
        self,
        exchange: Exchange,
        route: Route,
        model: ModelVersion,
        split: v1.V1Body | None,
        asked: Inference | None,
        now: float,
    ) -> None:
        names, packed = model.sequence_headers, exchange.packed_headers()
        if names is not None:
            mark, packed = read_sequence(packed if asked is None else asked.headers(packed), names)
        headers = msgspec.Raw(packed)
        rows: list[Row]
        bodies: Sequence[bytes]
        if asked is not None:
            bodies, key = asked.bodies, (route.explain, asked.key)
            self._limits.check_instances(len(bodies), len(asked.extra) + len(bytes(headers)))
            rows = asked.rows(exchange.request_id, headers, explain=route.explain)
        elif split is None:
            query = None
            if route.query:
                query = read_query(exchange.target.query)
            row = Row(
                exchange.request_id, len(exchange.body), BODY, exchange.content_type, headers, query,
                route.url_path, route.explain,
            )  # fmt: skip
            rows, bodies, key = [row], [exchange.body], (route.explain, b"")
        else:
            bodies = split.instances
            self._limits.check_instances(len(bodies), len(split.extra) + len(bytes(headers)))
            rows = [
                Row(
                    exchange.request_id, len(b), INSTANCE, JSON, headers, None, "", route.explain, split.extra
                )
                for b in bodies
            ]
            key = (route.explain, split.extra)
        lane = AtOnce(key) if route.explain else key
        deadline = _deadline(now, model, exchange)
        if asked is not None and asked.timeout is not None:
            deadline = min(now + asked.timeout, math.inf if deadline is None else deadline)
        if names is None:
            request = Request(exchange.request_id, rows, bodies, now, key=lane, deadline=deadline)
            reply = _Reply(exchange, model, route, time.monotonic, self._aside)
        else:
            request = SequencedRequest(
                exchange.request_id, rows, bodies, now, mark, key=lane, deadline=deadline
            )
            reply = _SequenceReply(exchange, model, route, time.monotonic, self._aside)
        if asked is not None:
            request.on_done = partial(reply.tensors, asked)
        elif split is not None:
            request.on_done = reply.split
        else:
            request.on_done, request.on_part = reply.whole, reply.part
        model.pool.submit(request, route.version)
        if not request.done:
            exchange.on_disconnect = lambda: model.pool.cancel(request)


class _Reply:
    """Turns an ended request into the answer to its exchange."""

    __slots__ = ("_aside", "_begun", "_clock", "_exchange", "_model", "_route")

    def __init__(
        self,
        exchange: Exchange,
        model: ModelVersion,
        route: Route,
        clock: Callable[[], float],
        aside: Aside,
    ) -> None:
        self._exchange = exchange
        self._model = model
        self._route = route
        self._clock = clock
        self._aside = aside
        self._begun = False

    def part(self, request: Request, answer: Answer, content: bytes) -> None:
        """A part of the body, before :meth:`whole` brings the last one (reference 6.6).

        Better than TorchServe: its internal mark ``ts_stream_next`` is not among the headers.
        """
        if not self._begun:
            self._begun = True
            queue = f"server-timing: queue;dur={_queued(request) * 1e3:.3f}\r\n"
            extra = (self._heads(request) + queue).encode("latin-1") + header_block(answer.headers or ())
            self._exchange.begin(answer.status, answer.content_type, extra, answer.phrase)
            request.backlog = self._exchange.unsent
        self._exchange.send(content)

    def _last(self, request: Request) -> None:
        """The end of an answer in parts. After a failure all that can be done is to break it off."""
        answered = None if request.error is not None else request.answers[0]
        if answered is None or answered[0].failed:
            cause = str(request.error) if answered is None else answered[1].decode("utf-8", "replace")
            _log.warning("Request %s: the answer broke off after its first part: %s", request.id, cause)
            self._model.metrics.broken_off()
            self._exchange.end(complete=False)
            return
        self._exchange.send(answered[1])
        self._extra(request)
        self._exchange.end()

    def whole(self, request: Request) -> None:
        """The one answer is the body, or the last part of it."""
        if self._begun:
            self._last(request)
            return
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
        served.request = self._exchange
        joined = self._joined(request, b"instances[%d]: ")
        if joined is None:
            return
        status, headers, predictions = joined
        key = b"explanations" if self._route.explain else b"predictions"
        body = v1.join(predictions, request.batch_id if self._model.batches else None, key)
        self._exchange.reply(status, body, JSON, self._extra(request) + headers)

    def tensors(self, asked: Inference, request: Request) -> None:
        """The answers are rows of the outputs, or the first failure is everybody's."""
        served.request = self._exchange
        joined = self._joined(request, b"row %d: ")
        if joined is None:
            return
        status, headers, contents = joined
        batch_id = request.batch_id if self._model.batches else None
        answering = asked.answering(
            self._model, contents, self._exchange.request_id, batch_id, said_beside(request)
        )
        if answering.is_light:
            try:
                self._encoded(request, status, headers, encode_answer(answering))
            except ModelServerError as error:
                self._not_encoded(request, error)
        else:
            self._encode_aside(request, status, headers, answering)

    def _encode_aside(self, request: Request, status: int, headers: bytes, answering: Answering) -> None:
        """The same for outputs that would hold up the event loop."""

        async def encode() -> None:
            call = self._aside.helpers.call(SECONDS, encode_answer, answering.without_inputs())
            self._encoded(request, status, headers, await call)

        self._exchange.on_disconnect = self._aside.start(
            sum(map(len, answering.answers)), encode(), partial(self._not_encoded, request)
        )

    def _encoded(
        self, request: Request, status: int, headers: bytes, encoded: tuple[bytes, str, bytes]
    ) -> None:
        body, content_type, length = encoded
        self._exchange.reply(status, body, content_type, self._extra(request) + headers + length)

    def _not_encoded(self, request: Request, error: ModelServerError) -> None:
        self._exchange.fail(error, kserve=True, extra=self._extra(request))

    def _joined(self, request: Request, where: bytes) -> tuple[int, bytes, list[bytes]] | None:
        """Status, header lines and contents of the rows' answers; None if it was answered with a failure.

        ``where`` says which of several rows failed.
        """
        if request.error is not None:
            self._error(request)
            return None
        status, headers, contents = 200, None, []
        for index, answered in enumerate(request.answers):
            assert answered is not None  # noqa: S101 - a request ends without an error when all are there
            answer, content = answered
            if answer.failed:
                prefix = where % index if len(request.rows) > 1 else b""
                self._failed(request, answer, prefix + content)
                return None
            if answer.status != 200:
                status = answer.status
            headers = headers or answer.headers
            contents.append(content)
        return status, header_block(headers) if headers else b"", contents

    def _failed(self, request: Request, answer: Answer, content: bytes) -> None:
        error = HandlerError(content.decode("utf-8", "replace"), answer.status)
        # A handler that failed on a body that was not split: the worker could not know it came by V1.
        error.kserve_status = 500 if answer.status == 503 and request.rows[0].kind == BODY else None
        error.type = answer.error_type  # type: ignore[misc]  # the worker names it
        if self._model.exposes_errors:
            error.request_id = self._exchange.request_id
        self._fail(request, error, self._extra(request))

    def _fail(self, request: Request, error: ModelServerError, extra: bytes) -> None:
        batch_id = request.batch_id if self._route.v1 and self._model.batches else None
        self._exchange.fail(error, kserve=self._route.kserve, extra=extra, batch_id=batch_id)

    def _error(self, request: Request) -> None:
        error = request.error
        if not isinstance(error, ModelServerError):
            error = HandlerError(str(error), 500)
        extra = self._heads(request).encode("latin-1") if request.batch_id else b""
        self._fail(request, error, extra)

    def _extra(self, request: Request) -> bytes:
        arrived = request.arrived
        queue = _queued(request)
        self._model.metrics.answered(self._clock() - arrived, queue, self._route.version is not None)
        return (
            f"{self._heads(request)}server-timing: queue;dur={queue * 1e3:.3f}, "
            f"inference;dur={request.handler_time * 1e3:.3f}\r\n"
        ).encode("latin-1")

    def _heads(self, request: Request) -> str:
        return f"x-batch-id: {request.batch_id}\r\nx-batch-size: {request.batch_size}\r\n"


class _SequenceReply(_Reply):
    """The same for a model with sequences: the answer names its own."""

    __slots__ = ("_said",)

    def part(self, request: Request, answer: Answer, content: bytes) -> None:
        if not self._begun:
            self._said = answer.headers
        super().part(request, answer, content)

    def _heads(self, request: Request) -> str:
        names = self._model.sequence_headers
        assert names is not None  # noqa: S101 - that is why this class was taken
        answered = request.answers[0]
        said = answered[0].headers if answered is not None else getattr(self, "_said", None)
        own = header_block(sequence_headers(request, names, said or ()))
        return super()._heads(request) + own.decode("latin-1")


def _queued(request: Request) -> float:
    arrived = request.arrived
    return (request.dispatched or arrived) - arrived


def _check_method(method: bytes, route: Route) -> None:
    """Raises MethodNotAllowed; what is no protocol of KServe's takes any usual method, as TorchServe does."""
    if route.kserve:
        raise MethodNotAllowed("POST")
    if method not in _USUAL:
        raise MethodNotAllowed(", ".join(sorted(name.decode() for name in (*_USUAL, b"OPTIONS"))))


def _check_light(exchange: Exchange) -> None:
    """Raises TooHeavy for what takes long to inflate, or to search for a field."""
    if len(exchange.body) > (_LIGHT_COMPRESSED if exchange.encoding else weight.LIGHT_TEXT):
        raise weight.TooHeavy


def _named(exchange: Exchange) -> str | None:
    """The model that a request for ``/invocations`` names: in its query, or in its form."""
    named = [value for name, value in read_query(exchange.target.query) if name == "model_name" and value]
    if named:
        return named[-1]
    return form_field(exchange.body, exchange.content_type, "model_name")


def _split(body: bytes, model: ModelVersion) -> v1.V1Body | None:
    """The instances of a V1 body, or None if the model takes the body as it is (design section 9, "Rows")."""
    if model.splits == "never":
        return None
    if weight.is_heavy_json(body):
        raise weight.TooHeavy
    return v1.split(body)


async def _split_aside(
    body: bytes, model: ModelVersion, helpers: Helpers, limits: RequestLimits
) -> v1.V1Body | None:
    if model.splits == "never":
        return None
    return await helpers.call(SECONDS, v1.split_aside, body, limits)


def _refuse(exchange: Exchange, route: Route, model: ModelVersion | None, error: ModelServerError) -> None:
    in_no_batch = "" if model is not None and route.v1 and model.batches else None
    exchange.fail(error, kserve=route.kserve, batch_id=in_no_batch)


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
        case ["v2", "models", model, "infer" | "explain" as verb] if model:
            return Route(model, explain=verb == "explain", v2=True)
        case ["v2", "models", model, "versions", version, "infer" | "explain" as verb] if model and version:
            return Route(model, version, explain=verb == "explain", v2=True)
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
