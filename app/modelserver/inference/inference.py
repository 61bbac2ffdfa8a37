"""The hot routes: predictions and explanations in all of TorchServe's forms, KServe's V1 and V2.

An endpoint here turns a body into rows, hands them to the model's pool, and turns the answers into a body.
Bodies are passed on as bytes; the worker decodes them and encodes the answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from modelserver.batching.queue import AtOnce
from modelserver.batching.request import Request
from modelserver.batching.sequences import SequencedRequest
from modelserver.errors import BadRequest, MethodNotAllowed, ModelServerError
from modelserver.http.answers import JSON
from modelserver.http.aside import Aside
from modelserver.http.content import form_field, inflate, read_query
from modelserver.inference import v1
from modelserver.inference.replies import Reply, SequenceReply
from modelserver.inference.routes import Route, Targets
from modelserver.inference.sequences import read_sequence
from modelserver.inference.v2 import (
    SECONDS,
    read_inference,
    read_inference_aside,
)
from modelserver.telemetry.stalls import served
from modelserver.tensors import weight
from modelserver.tensors.limits import RequestLimits
from modelserver.wire.messages import BODY, INSTANCE, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.http.exchange import Exchange
    from modelserver.inference.v2 import Inference
    from modelserver.models.registry import ModelVersion, Registry
    from modelserver.offload.helpers import Helpers


_log = logging.getLogger("modelserver.api")

# Bytes of a compressed body that are inflated on the event loop; they make a thousand times as many at most.
_LIGHT_COMPRESSED = 1 << 12

# Methods that predict; the OpenAPI document names them.
_USUAL = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE"})


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
        self.find = Targets().find

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
            reply = Reply(exchange, model, route, time.monotonic, self._aside)
        else:
            request = SequencedRequest(
                exchange.request_id, rows, bodies, now, mark, key=lane, deadline=deadline
            )
            reply = SequenceReply(exchange, model, route, time.monotonic, self._aside)
        if asked is not None:
            request.on_done = partial(reply.tensors, asked)
        elif split is not None:
            request.on_done = reply.split
        else:
            request.on_done, request.on_part = reply.whole, reply.part
        model.pool.submit(request, route.version)
        if not request.done:
            exchange.on_disconnect = lambda: model.pool.cancel(request)


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
