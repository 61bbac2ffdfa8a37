import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest

from modelserver.engine.batching.request import Request
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.wire.messages import BODY, FIELDS, Answer
from modelserver.errors import HandlerError, ModelNotFound, ModelServerError, ServiceUnavailable
from modelserver.ext.workflows.run import WorkflowRun, join_ends
from modelserver.ext.workflows.specification import NodeOptions, NodeSpec, make_graph
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.settings.settings import Settings


class Exchange:
    def __init__(self, deadline_ms=0):
        self.body, self.content_type, self.request_id = b"sent", "text/plain", "id"
        self.deadline_ms = deadline_ms
        self.on_disconnect = None
        self.watcher = None
        self.answer: tuple[int, bytes] | None = None
        self.error: ModelServerError | None = None

    def packed_headers(self):
        return b"\x90"

    def reply(self, status, body, content_type):
        assert self.answer is None
        self.answer = status, body

    def fail(self, error):
        assert self.error is None
        self.error = error


class Model:
    """A model whose pool keeps what it is sent."""

    def __init__(self, exposes=False):
        self.sent: list[Request] = []
        self.cancelled: list[Request] = []
        self.refusal: ModelServerError | None = None
        self.pool = self
        self.sequence_headers = self.traffic = None
        self.exposes_errors = exposes
        self.options = ModelOptions()
        self.metrics = ServerMetrics().model("m", "1.0")

    def submit(self, request):
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(request)

    def cancel(self, request):
        request.on_done = None
        self.cancelled.append(request)

    async def answer(self, content):
        """The last request's answer, and what follows from it, for up to two nodes."""
        self.sent[-1].deliver(0, [(Answer(len(content)), content)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def fail(self, error=None):
        self.sent[-1].fail(error or HandlerError("a reason", 503))
        await asyncio.sleep(0)


class Flow:
    def __init__(
        self,
        edges,
        exchange=None,
        settings=Settings(),  # noqa: B008 - frozen
        **options,
    ):
        graph = make_graph(edges)
        self.models = {name: Model() for name in graph.after}
        self.exchange = exchange or Exchange()
        self.ended_runs: list[WorkflowRun] = []
        nodes = {name: NodeSpec(name, NodeOptions(**options)) for name in graph.after}
        workflow = SimpleNamespace(
            name="w",
            specification=SimpleNamespace(graph=graph, nodes=nodes),
            model_name=lambda name: f"w__{name}",
        )
        services = SimpleNamespace(registry=self, off_loop=None, settings=settings)
        request = (self.exchange, workflow, services)
        self.run = WorkflowRun(*request, on_end=self.end)
        self.run.start()

    def version_for(self, name, _version, request):
        model = self.models.get(name.removeprefix("w__"))
        if model is None:
            raise ModelNotFound.named(name)
        return model if model.traffic is None else model.traffic.choose(request)

    def end(self, run):
        self.ended_runs.append(run)


def inputs_of(model):
    """The kind and the fields of what a node was given last."""
    request = model.sent[-1]
    kind = request.rows[0].kind
    return kind, msgspec.msgpack.decode(request.bodies[0]) if kind == FIELDS else request.bodies[0]


DIAMOND = {"a": ["b", "c"], "b": ["d"], "c": ["d"]}


async def test_nodes_get_answers_of_those_before():
    """The first the body, the next the answer as ``body``, one after several their answers by name."""
    flow = Flow(DIAMOND)
    models = flow.models
    assert inputs_of(models["a"]) == (BODY, b"sent")
    await models["a"].answer(b"one")
    assert inputs_of(models["b"]) == inputs_of(models["c"]) == (FIELDS, {"body": b"one"})
    await models["c"].answer(b"three")
    assert models["d"].sent == []
    await models["b"].answer(b"two")
    assert inputs_of(models["d"]) == (FIELDS, {"b": b"two", "c": b"three"})
    assert {request.id for model in models.values() for request in model.sent} == {"id"}
    await models["d"].answer(b"four")

    assert flow.exchange.answer == (200, b"four")
    assert flow.ended_runs == [flow.run]


async def test_a_failing_branch_cancels_the_other():
    flow = Flow(DIAMOND, retry_attempts=1)
    models = flow.models
    await models["a"].answer(b"one")
    await models["b"].fail()
    assert (len(models["b"].sent), flow.exchange.error) == (2, None)
    await models["b"].fail()

    error = flow.exchange.error
    assert (error.status, error.message) == (500, "Error executing b")
    assert models["c"].cancelled == models["c"].sent
    assert flow.ended_runs == [flow.run]
    assert models["b"].metrics.requests.errors.by_type == {"HandlerError": 2}
    assert models["a"].metrics.requests.errors.by_type == models["c"].metrics.requests.errors.by_type == {}


async def test_a_second_attempt_answers():
    flow = Flow({"a": ["b"]}, retry_attempts=1)
    await flow.models["a"].answer(b"one")
    await flow.models["b"].fail()
    assert inputs_of(flow.models["b"]) == (FIELDS, {"body": b"one"})
    await flow.models["b"].answer(b"two")

    assert flow.exchange.answer == (200, b"two")

    flow = Flow({"a": []}, retry_attempts=0)
    flow.models["a"].exposes_errors = True
    await flow.models["a"].fail()

    error = flow.exchange.error
    assert (error.message, error.request_id) == ("Error executing a: a reason", "id")


async def test_refusals_are_not_repeated():
    """A full queue, or a model without workers, is 503 at once; a model that is gone is 500."""
    flow = Flow({"a": ["b"]}, retry_attempts=5)
    flow.models["b"].refusal = ServiceUnavailable("full")
    await flow.models["a"].answer(b"one")
    assert (flow.exchange.error.status, flow.exchange.error.message) == (503, "Error executing b: full")
    assert flow.models["b"].metrics.requests.errors.by_type == {"ServiceUnavailable": 1}

    flow = Flow({"a": ["b"]}, retry_attempts=5)
    del flow.models["b"]
    await flow.models["a"].answer(b"one")
    assert (flow.exchange.error.status, flow.exchange.error.message) == (500, "Error executing b")


async def test_attempt_has_the_nodes_timeout():
    flow = Flow({"a": []}, timeout_ms=500)
    request = flow.models["a"].sent[0]
    assert request.deadline - request.arrived == pytest.approx(0.5)

    flow = Flow({"a": []}, Exchange(deadline_ms=1), retry_attempts=5)
    request = flow.models["a"].sent[0]
    assert request.deadline - request.arrived <= 0.001
    await asyncio.sleep(0.002)
    await flow.models["a"].fail()
    assert (len(flow.models["a"].sent), flow.exchange.error is None) == (1, False)


async def test_disconnected_client_cancels_all_nodes():
    flow = Flow(DIAMOND)
    await flow.models["a"].answer(b"one")
    flow.models["b"].sent[-1].deliver(0, [(Answer(1), b"x")])
    flow.exchange.on_disconnect()
    await asyncio.sleep(0)

    assert flow.models["c"].cancelled == flow.models["c"].sent
    assert (flow.exchange.answer, flow.exchange.error, flow.models["d"].sent) == (None, None, [])
    assert flow.ended_runs == [flow.run]


async def test_joining_is_cancelled_when_the_client_leaves():
    flow = Flow({"a": ["b", "c"]})
    stopped = []

    def start(size, work, fail):
        work.close()
        return lambda: stopped.append(size > 1 << 20)

    flow.run._off_loop = SimpleNamespace(start=start)
    await flow.models["a"].answer(b"one")
    for name in ("b", "c"):
        await flow.models[name].answer(b"x" * (600 << 10))
    assert flow.ended_runs == []
    flow.exchange.on_disconnect()

    assert (stopped, flow.ended_runs, flow.exchange.answer) == ([True], [flow.run], None)


async def test_answers_of_several_ends_are_joined():
    flow = Flow({"a": ["b", "c"]})
    await flow.models["a"].answer(b"one")
    await flow.models["c"].answer(b"plain \xff")
    await flow.models["b"].answer(b'{"x": [1]}')

    assert json.loads(flow.exchange.answer[1]) == {"b": {"x": [1]}, "c": "plain \ufffd"}
    assert join_ends(("b",), [b""]) == b'{\n  "b": ""\n}'


SMALL = Settings(max_request_size=10, max_response_size=10)


async def test_inputs_may_be_as_large_as_a_request_together():
    flow = Flow(DIAMOND, settings=SMALL)
    for name, size in (("a", 10), ("b", 5), ("c", 5), ("d", 10)):
        await flow.models[name].answer(b"x" * size)

    assert flow.exchange.answer == (200, b"x" * 10)

    edges = {"a": ["b", "c", "d"], "b": ["e"], "c": ["e"], "d": ["e"]}
    flow = Flow(edges, settings=SMALL)
    models = flow.models
    await models["a"].answer(b"x" * 10)
    await asyncio.sleep(0)
    await models["b"].answer(b"x" * 9)
    await models["c"].answer(b"xx")

    error = flow.exchange.error
    message = "Error executing e: The request body is larger than max_request_size=10 bytes."
    assert (error.status, error.type, error.message) == (413, "RequestEntityTooLargeException", message)
    assert (models["d"].cancelled, models["e"].sent) == (models["d"].sent, [])
    assert flow.ended_runs == [flow.run]


async def test_answers_too_large_together_are_refused():
    flow = Flow({"a": ["b", "c", "d"]}, settings=SMALL)
    await flow.models["a"].answer(b"one")
    await asyncio.sleep(0)
    await flow.models["b"].answer(b"x" * 9)
    await flow.models["c"].answer(b"xx")

    error = flow.exchange.error
    message = "The answer has 11 bytes, max_response_size allows 10."
    assert (error.status, error.message, flow.ended_runs) == (500, message, [flow.run])
    assert flow.models["d"].cancelled == flow.models["d"].sent


async def test_the_loop_has_its_turn_between_branches():
    """Each turn of the loop sends one request, so that many large answers do not hold up other requests."""
    names = [f"n{number}" for number in range(8)]
    flow = Flow({"a": names})
    flow.models["a"].sent[-1].deliver(0, [(Answer(1), b"x")])
    requests = []
    for _ in names:
        await asyncio.sleep(0)
        requests.append(sum(len(flow.models[name].sent) for name in names))

    assert requests == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_long_answers_are_joined_beside_the_loop():
    sizes = []

    def start(size, work, fail):
        work.close()
        sizes.append(size)

    for size in (4 << 10, 40 << 10):
        flow = Flow({"a": ["b", "c"]})
        flow.run._off_loop = SimpleNamespace(start=start)
        for name, length in (("a", 1), ("b", size), ("c", size)):
            await flow.models[name].answer(b"x" * length)

    assert sizes == [80 << 10]


async def test_requests_of_a_node_are_copied_and_counted():
    flow = Flow({"a": ["b"]})
    seen = []
    flow.models["b"].traffic = SimpleNamespace(
        watches=True,
        choose=lambda exchange: flow.models["b"],
        watch=lambda request, model: seen.append((request, model)),
        refused=lambda model, status: seen.append((model, status)),
    )
    await flow.models["a"].answer(b"one")
    assert seen == [(flow.models["b"].sent[0], flow.models["b"])]
    flow.models["b"].refusal = ServiceUnavailable("full")
    await flow.models["b"].fail()

    assert seen[-1] == (flow.models["b"], 503)
