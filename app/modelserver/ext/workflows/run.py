"""One request on its way through a workflow: each node's answers become the inputs of those after it."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.batching.request import Request
from modelserver.engine.tensors.weight import LIGHT_BYTES
from modelserver.errors import (
    DeadlineExceeded,
    InternalError,
    ModelServerError,
    PayloadTooLarge,
    ServiceUnavailable,
)
from modelserver.models.version import ModelVersion
from modelserver.surface.api.services import Services
from modelserver.surface.http.answers import JSON
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.inference.codec import Parsed
from modelserver.surface.inference.requests import make_request

if TYPE_CHECKING:
    from modelserver.ext.workflows.workflow import Workflow

_log = logging.getLogger("modelserver.workflows")

# CPU time that a helper may use for one answer.
_SECONDS = 10.0


class WorkflowRun:
    """A request and its answer.

    Nodes start as soon as all before them have answered, so branches run at once. A node that fails for good
    ends the request, and what the other nodes still do for it is cancelled, as when the client disconnects.
    Bytes are counted as they arrive, so that what is too large together is refused before it is put together.

    Args:
        exchange: with its body inflated.
        workflow: that is asked.
        services: the models of the nodes, the sizes of what these are given and of the answer, and what joins
            large answers.
        on_end: called once, when no node has the request any more.
    """

    def __init__(
        self,
        exchange: Exchange,
        workflow: Workflow,
        services: Services,
        *,
        on_end: Callable[[WorkflowRun], None],
    ) -> None:
        self._exchange = exchange
        self._workflow = workflow
        self._registry = services.registry
        self._off_loop = services.off_loop
        self._on_end: Callable[[WorkflowRun], None] | None = on_end
        self._loop = asyncio.get_running_loop()
        self._packed = exchange.packed_headers()
        limit = exchange.deadline_ms / 1000.0 if exchange.deadline_ms else math.inf
        self._deadline = monotonic() + limit
        graph = self._graph = workflow.specification.graph
        self._missing = {name: len(before) for name, before in graph.before.items()}
        # For each node, the number of later nodes that still need its output.
        self._left = {name: len(after) for name, after in graph.after.items()}
        # Bytes so far: of each node's input, and of the answer.
        self._received = dict.fromkeys(graph.after, 0)
        self._replied = 0
        settings = services.settings
        self._max_received, self._max_reply = settings.max_request_size, settings.max_response_size
        self._outputs: dict[str, bytes] = {}
        self._attempts: dict[str, int] = {}
        self._live: dict[str, tuple[ModelVersion, Request]] = {}

    def start(self) -> None:
        """Asks the first node; the exchange is answered now or later."""
        self._exchange.on_disconnect = self.cancel
        self._ask(self._graph.start)

    def cancel(self) -> None:
        """Cancels what the nodes do for the request, which gets no answer."""
        live, self._live = self._live, {}
        for model, request in live.values():
            model.pool.cancel(request)
        self._outputs.clear()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    @property
    def _ended(self) -> bool:
        return self._on_end is None

    def _ask(self, node: str) -> None:
        """One attempt at a node."""
        if self._ended:
            return
        now = monotonic()
        self._attempts[node] = self._attempts.get(node, 0) + 1
        left = min(self._workflow.specification.nodes[node].options.timeout_ms / 1000.0, self._deadline - now)
        model: ModelVersion | None = None
        try:
            model = self._registry.version_for(self._workflow.model_name(node), None, self._exchange)
            traffic = model.traffic
            parsed = self._input(node)
            request = make_request(parsed, model, self._exchange.request_id, self._packed, now, left, False)
            request.on_done = partial(self._answered, node, model)
            if self._exchange.watcher is not None:
                self._exchange.watcher.queued(request, model)
            self._live[node] = model, request
            if traffic is not None and traffic.watches:
                traffic.watch(request, model)
            model.pool.submit(request)
        except ModelServerError as error:
            self._live.pop(node, None)
            if model is not None:
                model.metrics.requests.failed(error, self._exchange.request_id)
                if model.traffic is not None:
                    model.traffic.refused(model, error.status)
            self._fail(node, error)

    def _input(self, node: str) -> Parsed:
        """Returns a node's input: the body, the output of the node before it, or those of several by name."""
        before = self._graph.before[node]
        if not before:
            return Parsed([self._exchange.body], content_type=self._exchange.content_type)
        names = ("body",) if len(before) == 1 else before
        fields = {name: self._outputs[source] for name, source in zip(names, before, strict=True)}
        return Parsed.of_fields(fields)

    def _answered(self, node: str, model: ModelVersion, request: Request) -> None:
        """An attempt has ended. What follows is for the next turn of the loop: the pool is still busy."""
        if self._live.pop(node, None) is None:
            return
        failure = request.failure()
        if failure is None:
            model.metrics.requests.answered(monotonic() - request.arrived, request.queued, False)
            (content,) = request.contents()
            self._loop.call_soon(self._pass_on, node, content)
        else:
            model.metrics.requests.totals.fail(monotonic() - request.arrived, answered=False)
            model.metrics.requests.failed(failure, request.id)
            self._loop.call_soon(self._try_again, node, model, failure)

    def _try_again(self, node: str, model: ModelVersion, failure: ModelServerError) -> None:
        if self._ended:
            return
        refused = isinstance(failure, ServiceUnavailable)
        repeats = self._workflow.specification.nodes[node].options.retry_attempts
        if refused or self._attempts[node] > repeats or monotonic() >= self._deadline:
            self._fail(node, failure, model)
            return
        _log.warning(
            "Request %s: attempt %d at node %s of workflow %s failed: %s",
            self._exchange.request_id,
            self._attempts[node],
            node,
            self._workflow.name,
            failure,
        )
        self._ask(node)

    def _pass_on(self, node: str, content: bytes) -> None:
        """A node has answered."""
        if self._ended:
            return
        graph = self._graph
        self._outputs[node] = content
        for source in graph.before[node]:
            self._left[source] -= 1
            if not self._left[source]:
                del self._outputs[source]
        ready = []
        for target in graph.after[node]:
            self._received[target] += len(content)
            if self._received[target] > self._max_received:
                self._fail(target, PayloadTooLarge.of(self._max_received))
                return
            self._missing[target] -= 1
            if not self._missing[target]:
                ready.append(target)
        if ready:
            self._ask_in_turns(ready)
        elif not graph.after[node]:
            self._replied += len(content)
            if self._replied > self._max_reply:
                message = f"The answer has {self._replied} bytes, max_response_size allows {self._max_reply}."
                self._fail_whole(InternalError(message))
            elif all(end in self._outputs for end in graph.ends):
                self._finish([self._outputs[end] for end in graph.ends])

    def _ask_in_turns(self, nodes: list[str]) -> None:
        """Asks one node in each turn of the loop: each has large answers packed and sent once more."""
        self._ask(nodes[0])
        if len(nodes) > 1 and not self._ended:
            self._loop.call_soon(self._ask_in_turns, nodes[1:])

    def _finish(self, contents: list[bytes]) -> None:
        ends = self._graph.ends
        if len(ends) == 1:
            self._reply(contents[0])
        elif (size := sum(map(len, contents))) <= LIGHT_BYTES:
            self._reply(join_ends(ends, contents))
        else:
            stop = self._off_loop.start(size, self._join_off_loop(contents), self._fail_whole)

            def leave() -> None:
                stop()
                self.cancel()

            self._exchange.on_disconnect = leave

    async def _join_off_loop(self, contents: list[bytes]) -> None:
        self._reply(await self._off_loop.helpers.call(_SECONDS, join_ends, self._graph.ends, contents))

    def _reply(self, content: bytes) -> None:
        self._exchange.reply(200, content, JSON)
        self.cancel()

    def _fail(self, node: str, error: ModelServerError, model: ModelVersion | None = None) -> None:
        """Ends the request with the node's name. Clients see why where the model's errors are shown."""
        _log.warning(
            "Request %s: node %s of workflow %s failed: %s",
            self._exchange.request_id,
            node,
            self._workflow.name,
            error,
        )
        text = f"Error executing {node}"
        kinds = [ServiceUnavailable, PayloadTooLarge]
        if monotonic() >= self._deadline:
            kinds.append(DeadlineExceeded)
        failure: ModelServerError
        if (kind := next((each for each in kinds if isinstance(error, each)), None)) is not None:
            failure = kind(f"{text}: {error.message}")
        elif model is not None and model.exposes_errors:
            failure = InternalError(f"{text}: {error.message}")
            failure.request_id = self._exchange.request_id if error.is_handlers else None
        else:
            failure = InternalError(text)
        self._fail_whole(failure)

    def _fail_whole(self, error: ModelServerError) -> None:
        self._exchange.fail(error)
        self.cancel()


def join_ends(names: tuple[str, ...], contents: list[bytes]) -> bytes:
    """The answer of several ends: a JSON object of their answers, as text where one is not JSON."""
    return msgspec.json.format(
        msgspec.json.encode({name: _as_json(each) for name, each in zip(names, contents, strict=True)})
    )


def _as_json(content: bytes) -> msgspec.Raw:
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.Raw(json.dumps(content.decode("utf-8", "replace")).encode())
    return msgspec.Raw(content)
