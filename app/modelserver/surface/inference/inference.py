"""The hot routes: predictions and explanations in all of TorchServe's forms, KServe's V1 and V2.

The codec of a route's protocol turns a body into rows for the model's pool, and their answers into a body.
Bodies stay bytes: the worker decodes them and encodes the answers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.engine.tensors import weight
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.errors import BadRequest, MethodNotAllowed, ModelServerError, ModelVersionNotFound
from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion
from modelserver.surface.http.content import form_field, inflate
from modelserver.surface.http.exchange import Exchange, Target, read_query
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.inference.codec import Codec, Parsed
from modelserver.surface.inference.replies import Reply, SequenceReply
from modelserver.surface.inference.requests import home_of_sequence, make_request
from modelserver.surface.inference.routes import Route, target_finder
from modelserver.surface.inference.scopes import may_take_scopes, names_model, without_version
from modelserver.surface.inference.v1 import V1
from modelserver.surface.inference.v2 import V2

if TYPE_CHECKING:
    from modelserver.surface.watching import Watch

Find: TypeAlias = "Callable[[bytes], Target | None]"
MakeCodec: TypeAlias = "Callable[..., Codec]"

# Bytes of a compressed body that is inflated on the event loop: at most a thousand times as many.
_LIGHT_COMPRESSED = 1 << 12

# Methods that predict; the OpenAPI document names them.
_USUAL = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE"})


class InferenceProtocol(NamedTuple):
    """A protocol of an extension; ``paths`` is as in :func:`target_finder`.

    ``serve`` answers its requests; without it they are queued for models, read by ``codec``. ``find`` is
    called with what finds the target of a URL in this process, and returns what does so instead.
    """

    name: str
    paths: str
    codec: MakeCodec | None = None
    serve: Callable[[Exchange], None] | None = None
    find: Callable[[Find], Find] | None = None


class InferenceApi:
    """Serves the hot routes of the inference port.

    Args:
        registry: of the models.
        max_body: maximum size of a body in bytes, also after inflating it.
        off_loop: for work that would block the event loop.
        limits: of one request.
        protocols: those of extensions.
        shared: memory that clients have registered for tensors.
        watch: called with each request, if anybody watches them.
    """

    def __init__(  # noqa: PLR0917 - what it needs, once
        self,
        registry: Registry,
        max_body: int,
        off_loop: OffLoop | None = None,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 - it never changes
        shared: SharedMemory | None = None,
        watch: Watch | None = None,
        protocols: Sequence[InferenceProtocol] = (),
    ) -> None:
        self.find = target_finder((protocol.name, protocol.paths) for protocol in protocols)
        for protocol in protocols:
            if protocol.find is not None:
                self.find = protocol.find(self.find)
        self._registry = registry
        self._watch = watch
        self._max_body = max_body
        self._limits = limits
        self._off_loop = off_loop or OffLoop(max_body)
        kinds: dict[str, MakeCodec] = {"": Codec, "v1": V1, "v2": V2}
        kinds |= {each.name: each.codec or Codec for each in protocols if each.serve is None}
        self._others = {each.name: each.serve for each in protocols if each.serve is not None}
        self._codecs = {name: kind(limits, self._off_loop.helpers, shared) for name, kind in kinds.items()}

    def serve(self, exchange: Exchange) -> None:
        """Answers one request: now if it is refused, otherwise when its batch is done."""
        loop_watch.request = exchange
        route: Route = exchange.target.route
        codec = self._codecs.get(route.protocol)
        if self._watch is not None:
            exchange.watcher = self._watch(exchange)
        if codec is None:
            self._serve_other(exchange, route)
            return
        model: ModelVersion | None = None
        try:
            if exchange.method != b"POST":
                _check_method(exchange.method, route)
            if exchange.encoding or not route.model:
                _check_light(exchange)
                exchange.body = inflate(exchange.body, exchange.encoding, self._max_body)
                if not route.model:
                    codec.address(exchange)
                    route = exchange.target.route
            name = route.model or _named(exchange) or self._only_one()
            model = self._registry.version_for(name, route.version, exchange)
            # Models that are always loaded need no call for that.
            demand = model.pool.crew.on_demand
            if demand is None or not self._serve_first(exchange, codec, model, monotonic()):
                self._submit(exchange, codec, model, codec.read(exchange, model), monotonic())
        except weight.TooHeavy:
            self._serve_off_loop(exchange, route, model, monotonic())
        except ModelServerError as error:
            self._refuse(exchange, codec, model, error)

    def _refuse(
        self, exchange: Exchange, codec: Codec, model: ModelVersion | None, error: ModelServerError
    ) -> None:
        """Answers a request with an error, unless its path goes on below that of an ASGI application."""
        try:
            target = exchange.target
            is_path = names_model(target.path) and not target.route.kserve
            if not is_path or not isinstance(error, ModelVersionNotFound):
                raise error
            named = self._registry.get(target.route.model)
            crew = named.pool.crew
            is_unknown = model is None and crew.model is None and may_take_scopes(crew.spec.load)
            if is_unknown and self._serve_first(exchange, codec, named, monotonic()):
                # What its handler is decides whether the version is a part of the path.
                return
            if not named.pool.dispatch.takes_scopes:
                raise error
            exchange.target = without_version(target)
            model = self._registry.version_for(named.name, None, exchange)
            if not self._serve_first(exchange, codec, model, monotonic()):
                self._submit(exchange, codec, model, codec.read(exchange, model), monotonic())
        except ModelServerError as error:  # noqa: PLR1704 - deleted here: no cycle with this frame
            _fail(exchange, codec, None if isinstance(error, ModelVersionNotFound) else model, error)

    def _serve_other(self, exchange: Exchange, route: Route) -> None:
        try:
            _check_method(exchange.method, route)
        except MethodNotAllowed as error:
            exchange.fail(error)
        else:
            self._others[route.protocol](exchange)

    def _serve_first(self, exchange: Exchange, codec: Codec, model: ModelVersion, now: float) -> bool:
        """Serves a request that loads the model, if nobody knows yet what requests the handler takes."""
        demand = model.pool.crew.on_demand
        if demand is None or model.pool.crew.model is not None:
            return False
        seconds = min(exchange.deadline_ms / 1000.0 or math.inf, model.options.request_timeout or math.inf)

        async def load() -> None:
            await demand.load(len(exchange.body), now + seconds - monotonic())
            exchange.on_disconnect = None
            version, to = exchange.target.route.version, model
            if version not in {None, model.version}:
                # Perhaps a part of the path; or it was registered meanwhile.
                to = self._registry.version_for(model.name, version, exchange)
            try:
                if to is model or not self._serve_first(exchange, codec, to, now):
                    self._submit(exchange, codec, to, codec.read(exchange, to), now)
            except weight.TooHeavy:
                self._serve_off_loop(exchange, exchange.target.route, to, now)

        # Its bytes count for the model.
        exchange.on_disconnect = self._off_loop.start(
            0, load(), lambda error: self._refuse(exchange, codec, model, error)
        )
        return True

    def _serve_off_loop(
        self, exchange: Exchange, route: Route, model: ModelVersion | None, now: float
    ) -> None:
        """Serves a request that would block the event loop; ``model`` if it is already known."""
        codec = self._codecs[route.protocol]

        async def read() -> None:
            nonlocal model
            if model is None:
                await self._off_loop.inflate(exchange, self._max_body)
                if not route.model:
                    await asyncio.to_thread(codec.address, exchange)
                to: Route = exchange.target.route
                named: str | None = to.model or await asyncio.to_thread(_named, exchange)
                model = self._registry.version_for(named or self._only_one(), to.version, exchange)
                if self._serve_first(exchange, codec, model, now):
                    return
            parsed = await codec.read_off_loop(exchange, model)
            exchange.on_disconnect = None
            self._submit(exchange, codec, model, parsed, now)

        exchange.on_disconnect = self._off_loop.start(
            len(exchange.body), read(), lambda error: self._refuse(exchange, codec, model, error)
        )

    def _only_one(self) -> str:
        """The model of ``/invocations`` if the request names none: the only one loaded at start."""
        at_startup = [model.name for model in self._registry.versions() if model.loaded_at_startup]
        if len(at_startup) != 1:
            raise BadRequest("Parameter model_name is required.")
        return at_startup[0]

    def _submit(
        self, exchange: Exchange, codec: Codec, model: ModelVersion, parsed: Parsed, now: float
    ) -> None:
        route: Route = exchange.target.route
        packed = exchange.packed_headers()
        left = exchange.deadline_ms / 1000.0 if exchange.deadline_ms else None
        traffic = model.traffic if route.version is None else None
        if traffic is not None and model.sequence_headers is not None:
            model = home_of_sequence(model, traffic, parsed, packed)
        request = make_request(parsed, model, exchange.request_id, packed, now, left, route.explain)
        if exchange.watcher is not None:
            exchange.watcher.queued(request, model)
        kind = Reply if model.sequence_headers is None else SequenceReply
        reply = kind(exchange, model, codec, parsed, self._off_loop)
        if parsed.joins:
            self._limits.check_instances(len(request.rows), len(parsed.extra) + len(packed))
            request.on_done = reply.joined
        else:
            request.on_done, request.on_part = reply.whole, reply.part
        if traffic is not None and traffic.watches:
            traffic.watch(request, model)
        model.pool.submit(request, route.version)
        if not request.done:
            exchange.on_disconnect = partial(model.pool.cancel, request)


def _fail(exchange: Exchange, codec: Codec, model: ModelVersion | None, error: ModelServerError) -> None:
    """Answers a request that was not queued."""
    route: Route = exchange.target.route
    if model is not None:
        model.metrics.requests.failed(error, exchange.request_id, form=route.form)
        if model.traffic is not None and route.version is None:
            model.traffic.refused(model, error.status)
    codec.fail(exchange, error, model)


def _check_method(method: bytes, route: Route) -> None:
    """Raises MethodNotAllowed; routes that are not KServe's allow any usual method, as in TorchServe."""
    if route.kserve:
        raise MethodNotAllowed("POST")
    if method not in _USUAL:
        raise MethodNotAllowed(", ".join(sorted(name.decode() for name in (*_USUAL, b"OPTIONS"))))


def _check_light(exchange: Exchange) -> None:
    """Raises TooHeavy for bodies that take long to inflate, or to search for a field."""
    if len(exchange.body) > (_LIGHT_COMPRESSED if exchange.encoding else weight.LIGHT_TEXT):
        raise weight.TooHeavy


def _named(exchange: Exchange) -> str | None:
    """The model that a request for ``/invocations`` names: in its query, or in its form."""
    named = [value for name, value in read_query(exchange.target.query) if name == "model_name" and value]
    if named:
        return named[-1]
    return form_field(exchange.body, exchange.content_type, "model_name")
