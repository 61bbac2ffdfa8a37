import asyncio
import gzip
import inspect
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.cycles import no_cycles
from tests.waiting import until

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.wire.messages import Load
from modelserver.errors import ModelVersionNotFound, ServiceUnavailable
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.registry import Registry
from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.inference.codec import Codec
from modelserver.surface.inference.inference import InferenceApi, InferenceProtocol, _fail

FLOOD = 2_500


class Connection:
    """Counts the answers as the server does."""

    cors = None

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self.statuses: list[int] = []

    def finish(
        self, exchange: ConnectionExchange, status: int, data: bytes, body: bytes = b"", *, keep: bool
    ) -> None:
        self.statuses.append(status)
        self._metrics.response(status)


def served(
    api: InferenceApi, connection: Connection, path: str, body: bytes, *headers: tuple[bytes, bytes]
) -> None:
    target = api.find(path.encode())
    assert target is not None
    exchange = ConnectionExchange(connection, target, b"POST", "1.1", list(headers), True)
    exchange.body = body
    api.serve(exchange)


def series(metrics: ServerMetrics) -> Sequence[str]:
    return [line.rpartition(" ")[0] for line in b"".join(metrics.pieces()).decode().splitlines()]


@pytest.mark.parametrize(
    "route", ["/predictions/{}", "/predictions/{}/1.0", "/v1/models/{}:predict", "/v2/models/{}/infer"]
)
def test_unknown_names_make_no_series(route):
    """Ten thousand, a quarter on each route, leave no series behind, and nothing that grows (F69)."""
    metrics = ServerMetrics(hostname="h")
    metrics.model("m", "1.0").requests.received(explicit_version=True)
    metrics.response(404)
    before = series(metrics)
    api = InferenceApi(Registry(None), 1 << 20)
    connection = Connection(metrics)
    for number in range(FLOOD):
        served(api, connection, route.format(f"flood-{number}"), b"{}")

    assert set(connection.statuses) == {404}
    assert series(metrics) == before
    assert f'Requests4XX{{Level="Host",Hostname="h"}} {FLOOD + 1}.0' in b"".join(metrics.pieces()).decode()
    assert inspect.getclosurevars(api.find).nonlocals["cached"].cache_info().currsize <= 1024 < FLOOD


@pytest.mark.parametrize(
    "path",
    ["/predictions/m", "/predictions/m/1.0", "/v1/models/m:predict", "/v2/models/m/infer", "/invocations"],
)
def test_refused_requests_leave_no_reference_cycles(path):
    """A cycle would hold the connection, with its buffers."""
    api = InferenceApi(Registry(None), 1 << 20)
    connection = Connection(ServerMetrics(hostname="h"))
    with no_cycles():
        served(api, connection, path, b"{}")

    assert connection.statuses in ([404], [400])


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        (b"gzip", gzip.compress(b"small"), 404),
        (b"gzip", gzip.compress(bytes(2 << 20)), 413),
        (b"gzip", gzip.compress(bytes(100 << 20)), 413),
        (b"gzip", b"no gzip", 400),
        (b"br", b"x", 415),
    ],
    ids=["small", "bomb", "large bomb", "damaged", "unknown"],
)
async def test_compressed_body_is_inflated_up_to_the_limit(coding, body, status):
    """On the event loop, and a large one beside it; then the model is looked for (F6).

    A reference cycle would hold the body.
    """
    connection = Connection(ServerMetrics(hostname="h"))
    api = InferenceApi(Registry(None), 1 << 20)
    with no_cycles():
        served(api, connection, "/predictions/m", body, (b"content-encoding", coding))
        await until(lambda: connection.statuses)

    assert connection.statuses == [status]


@pytest.mark.parametrize(("path", "counted"), [("/predictions/m", [503]), ("/predictions/m/1.0", [])])
def test_refusals_of_named_versions_say_nothing_of_a_promotion(path, counted):
    statuses: list[int] = []
    traffic = SimpleNamespace(refused=lambda _, status: statuses.append(status))
    api = InferenceApi(Registry(None), 1 << 20)
    exchange, model, codec = (
        SimpleNamespace(**each)
        for each in (
            {"target": api.find(path.encode()), "request_id": "r"},
            {"traffic": traffic, "metrics": ServerMetrics().model("m", "1.0")},
            {"fail": lambda *_: None},
        )
    )
    _fail(exchange, codec, model, ServiceUnavailable("The queue is full."))

    assert statuses == counted


async def test_large_body_is_searched_for_its_model_beside_the_loop():
    """One of millions of numbers takes 3 ms for each MB. So it is for those who watch requests."""
    threads: list[threading.Thread] = []

    class Searched(Codec):
        def address(self, exchange: Exchange) -> None:
            threads.append(threading.current_thread())
            route = replace(exchange.target.route, model="m")
            exchange.target = replace(exchange.target, route=route)

    protocol = InferenceProtocol("own", "/own", Searched)
    api = InferenceApi(Registry(None), 1 << 20, watch=lambda _: None, protocols=[protocol])
    connection = Connection(ServerMetrics(hostname="h"))
    for body in (b"m", b"m" * (2 << 20)):
        served(api, connection, "/own", body)
    await until(lambda: len(connection.statuses) == 2)

    assert [each is threading.main_thread() for each in threads] == [True, False]


@pytest.mark.parametrize(("registered", "answers"), [("2.0", (["2.0"], [])), ("3.0", ([], [404]))])
async def test_path_names_a_version_after_another_has_loaded(registered, answers):
    """One that is registered meanwhile answers; without it, the other one counts no error."""
    loaded, versions, submitted = asyncio.Event(), {}, []

    class Models(Registry):
        def get(self, name, version=None):
            if (version or "1.0") not in versions:
                raise ModelVersionNotFound.named(name, version, None)
            return versions[version or "1.0"]

    class Demand:
        async def load(self, size, seconds):
            await loaded.wait()

    def register(version, demand):
        spec = SimpleNamespace(load=Load("m", "1.0", "/", "own", 1))
        crew = SimpleNamespace(on_demand=demand, model=None, spec=spec)
        pool = SimpleNamespace(crew=crew, dispatch=SimpleNamespace(takes_scopes=False))
        options = ModelOptions()
        metrics = SimpleNamespace(requests=SimpleNamespace(received=lambda _: None))
        parts = {"pool": pool, "options": options, "traffic": None, "metrics": metrics}
        versions[version] = SimpleNamespace(name="m", version=version, **parts)

    class Api(InferenceApi):
        def _submit(self, exchange, codec, model, parsed, now):
            submitted.append(model.version)

    register("1.0", Demand())
    api = Api(Models(None), 1 << 20)
    api._codecs[""].read = lambda exchange, model: None
    connection = Connection(ServerMetrics(hostname="h"))
    served(api, connection, "/predictions/m/2.0", b"x")
    register(registered, None)
    loaded.set()
    await until(lambda: submitted or connection.statuses)

    assert (submitted, connection.statuses) == answers
