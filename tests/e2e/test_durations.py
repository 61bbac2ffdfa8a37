"""Handlers whose time varies: who waits for whom, and what is told of it."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import signal
import struct
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e.grpc_client import INFERENCE, PATIENCE, channel, grpc_server, oip, predict, stub
from tests.e2e.serving import Server, serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    import httpx

JSON = "application/json"
BYTES = "application/octet-stream"
OCCUPIED = 0.07  # seconds for which the worker is busy with something else
NAP = 0.03
WAITED = 0.02  # what counts as having waited for that


@pytest.fixture(
    scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids="front ends: {}".format
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_store: Path
) -> Iterator[Server]:
    """A server with REST and gRPC, with one process for connections or with two front ends."""
    folder = tmp_path_factory.mktemp("durations")
    with serving(grpc_server(folder, model_store, frontend_processes=request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def naps(server: Server) -> Server:
    """``naps`` in batches of two, without waiting for the second."""
    return server.registered("naps.mar", batch_size=2, batch_policy="greedy", split_instances=True)


# -- who waits for whom


def sleep(seconds: float) -> dict[str, object]:
    """An order for ``obey``."""
    return {"do": "sleep", "seconds": seconds}


def test_a_slow_request_holds_up_nobody(server: Server, pool: ThreadPoolExecutor) -> None:
    """While one of two workers has a slow request, all that come after it are answered by the other."""
    server.registered("obey.mar", model_name="uneven", initial_workers=2)
    slow = pool.submit(server.predict, "uneven", sleep(1.2))
    quick: list[Any] = []
    for _ in range(7):
        time.sleep(0.02)
        quick.append(pool.submit(server.predict, "uneven", sleep(0.05)))
    answers = [future.result(PATIENCE) for future in quick]

    assert not slow.done()
    assert [answer.status_code for answer in answers] == [200] * 7
    assert slow.result(PATIENCE).json()["pid"] not in {answer.json()["pid"] for answer in answers}


# -- what is told


@dataclass(frozen=True)
class Told:
    """Seconds: what the client saw, and of that what the server says about waiting and about the handler."""

    seen: float
    queue: float
    handler: float

    @property
    def rest(self) -> float:
        """What the client saw beyond that."""
        return self.seen - self.queue - self.handler


def told(text: str) -> tuple[float, float]:
    """The seconds of a ``server-timing``; an answer in parts tells only of the queue."""
    queue = re.search(r"queue;dur=([0-9.]+)", text)
    handler = re.search(r"inference;dur=([0-9.]+)", text)
    assert queue is not None
    return float(queue[1]) / 1e3, float(handler[1]) / 1e3 if handler else 0.0


class Asker:
    """Asks a server's model ``naps`` over kept connections."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.other = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        for connection in (self.http, self.other):
            connection.connect()
        self.grpc = channel(server, "inference")

    def close(self) -> None:
        """Leaves."""
        self.grpc.close()
        self.http.close()
        self.other.close()

    def post(
        self, path: str, body: bytes, kind: str = BYTES, *, by: http.client.HTTPConnection | None = None
    ) -> Told:
        """A request, by what its headers tell."""
        connection = by or self.http
        began = time.perf_counter()
        connection.request("POST", path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        content = answer.read()
        seen = time.perf_counter() - began
        assert answer.status == 200, content
        return Told(seen, *told(answer.headers["server-timing"]))

    def call(self, service: str, method: str, asked: Any) -> Told:
        """A call, which tells nothing."""
        answer = getattr(stub(self.grpc, service), method)
        began = time.perf_counter()
        answered = answer(asked, timeout=PATIENCE)
        if method.startswith("Stream"):
            list(answered)
        return Told(time.perf_counter() - began, 0.0, 0.0)

    def counted(self) -> tuple[float, float]:
        """The seconds of queue and of handlers that the metrics count so far."""
        queue = self.server.metric("ts_queue_latency_microseconds", model_name="naps") / 1e6
        return queue, self.server.metric("modelserver_handler_seconds_sum", model_name="naps")

    def behind_another(self, ask: Callable[[], Told]) -> tuple[Told, Told]:
        """What is told of the request that keeps the worker busy, and of the one that waits for it."""
        took = Future[Told]()
        other = threading.Thread(target=lambda: took.set_result(self._occupy()))
        other.start()
        wait_until(
            lambda: took.done() or self.server.metric("modelserver_batches_in_flight", model_name="naps"),
            "the worker is busy, or was",
        )
        second = ask()
        other.join()
        return took.result(0), second

    def _occupy(self) -> Told:
        return self.post("/predictions/naps", str(OCCUPIED).encode(), by=self.other)


def rest(asker: Asker, seconds: float) -> Callable[[], Told]:
    """``/predictions``."""
    return lambda: asker.post("/predictions/naps", str(seconds).encode())


def v1_split(asker: Asker, seconds: float) -> Callable[[], Told]:
    """Three instances, which are two batches."""
    body = json.dumps({"instances": [seconds] * 3}).encode()
    return lambda: asker.post("/v1/models/naps:predict", body, JSON)


def v2(asker: Asker, seconds: float) -> Callable[[], Told]:
    """A tensor of one row."""
    tensor = {"name": "x", "datatype": "FP64", "shape": [1, 1], "data": [seconds]}
    return lambda: asker.post("/v2/models/naps/infer", json.dumps({"inputs": [tensor]}).encode(), JSON)


def stream(asker: Asker, seconds: float) -> Callable[[], Told]:
    """Two parts over REST, whose head can tell no more than the time in the queue."""
    return lambda: asker.post("/predictions/naps", f"{seconds / 2} {seconds / 2}".encode())


def grpc_predictions(asker: Asker, seconds: float) -> Callable[[], Told]:
    """TorchServe's gRPC, which tells nothing itself."""
    asked = predict("naps", data=str(seconds).encode())
    return lambda: asker.call(f"{INFERENCE}InferenceAPIsService", "Predictions", asked)


def grpc_open_inference(asker: Asker, seconds: float) -> Callable[[], Told]:
    """The Open Inference Protocol's gRPC, which tells nothing itself."""
    infer = oip("ModelInferRequest", model_name="naps", raw_input_contents=[struct.pack("<d", seconds)])
    infer.inputs.add(name="x", datatype="FP64", shape=[1, 1])
    return lambda: asker.call("inference.GRPCInferenceService", "ModelInfer", infer)


def grpc_stream(asker: Asker, seconds: float) -> Callable[[], Told]:
    """Two parts over gRPC."""
    asked = predict("naps", data=f"{seconds / 2} {seconds / 2}".encode())
    return lambda: asker.call(f"{INFERENCE}InferenceAPIsService", "StreamPredictions", asked)


@pytest.fixture
def asker(naps: Server) -> Iterator[Asker]:
    """Two connections."""
    made = Asker(naps)
    yield made
    made.close()


def least(take: Callable[[], float], enough: float | None = None) -> float:
    """The least of three; of twenty if it is to be small ``enough``: the first that is ends them."""
    found = take()
    for _ in range(2 if enough is None else 19):
        if enough is not None and found < enough:
            break
        found = min(found, take())
    return found


@pytest.mark.alone
@pytest.mark.parametrize("way", [rest, v1_split, v2], ids=lambda way: way.__name__)
def test_headers_add_up_to_what_the_client_saw(
    asker: Asker, way: Callable[[Asker, float], Callable[[], Told]]
) -> None:
    """Behind a busy worker, queue and inference of ``server-timing`` leave hardly more of a request's time
    than of one that finds the worker free: another millisecond, or as much again on a machine on which that
    takes longer.
    """
    free = least(lambda: way(asker, NAP)().rest)
    bound = free + max(free, 0.001)

    def once() -> float:
        _, second = asker.behind_another(way(asker, NAP))
        assert second.rest >= 0
        return second.rest if second.queue > WAITED else math.inf

    assert least(once, bound) < bound


@pytest.mark.alone
@pytest.mark.parametrize(
    "way", [stream, grpc_predictions, grpc_open_inference, grpc_stream], ids=lambda way: way.__name__
)
def test_metrics_add_up_to_what_the_client_saw(
    asker: Asker, way: Callable[[Asker, float], Callable[[], Told]]
) -> None:
    """The same of what the metrics count for it, where the answer cannot tell all."""

    ask = way(asker, NAP)

    def alone() -> float:
        (queue, handler), seen = asker.counted(), ask().seen
        after = asker.counted()
        return Told(seen, after[0] - queue, after[1] - handler).rest

    def behind() -> float:
        before = asker.counted()
        first, second = asker.behind_another(ask)
        queue, handler = (now - then for now, then in zip(asker.counted(), before, strict=True))
        counted = Told(second.seen, queue - first.queue, handler - first.handler)
        assert counted.rest >= -0.0005  # headers and metrics of the first are rounded
        return counted.rest if counted.queue > WAITED else math.inf

    free = least(alone)
    bound = free + max(free, 0.001)

    assert least(behind, bound) < bound


def test_time_behind_others_is_counted_wherever_it_is_spent(server: Server, pool: ThreadPoolExecutor) -> None:
    """Of three requests at one worker the second waits for one and the third for two, whether in the queue or
    at the worker: that is what the metrics count, and nothing of what the clients saw is missing.
    """
    server.registered("obey.mar", model_name="three")

    def counted() -> tuple[float, float]:
        queue = server.metric("ts_queue_latency_microseconds", model_name="three") / 1e6
        return queue, server.metric("ts_inference_latency_microseconds", model_name="three") / 1e6

    before = counted()
    answers: list[httpx.Response] = list(pool.map(lambda _: server.predict("three", sleep(0.3)), range(3)))
    queue, latency = (now - then for now, then in zip(counted(), before, strict=True))
    waits, handlers = zip(*(told(answer.headers["server-timing"]) for answer in answers), strict=True)

    assert queue > 0.9 - 0.05
    assert queue == pytest.approx(sum(waits), abs=0.001)
    assert latency - queue == pytest.approx(sum(handlers), abs=0.03)


def test_the_time_of_a_batch_that_failed_is_counted(server: Server, pool: ThreadPoolExecutor) -> None:
    """A request whose batch failed for another's sake is computed once more: what its answer tells has both
    runs, and hardly anything of what the client saw is missing.
    """
    server.registered("obey.mar", model_name="retried", batch_size=2, max_batch_delay=5000)

    def ask(order: dict[str, object]) -> tuple[float, httpx.Response]:
        began = time.perf_counter()
        answer = server.predict("retried", order)
        return time.perf_counter() - began, answer

    def once() -> float:
        good = pool.submit(ask, sleep(0.2))
        bad = pool.submit(ask, {"do": "raise"})
        (seen, answer), (_, failed) = good.result(PATIENCE), bad.result(PATIENCE)
        assert (answer.status_code, failed.status_code) == (200, 503)
        queue, handler = told(answer.headers["server-timing"])
        assert handler > 0.2
        return Told(seen, queue, handler).rest

    bound = 0.03
    assert least(once, bound) < bound


# -- what waits at a worker that ends


@pytest.mark.slow
def test_what_waits_at_a_worker_that_is_killed_is_answered_by_the_other(
    server: Server, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """The batch that a killed worker ran fails, the one that waited behind it is computed once, elsewhere."""
    server.registered("naps.mar", model_name="reserved", initial_workers=2)
    notes = tmp_path / "notes"

    def ask(name: str, seconds: float) -> httpx.Response:
        return server.predict("reserved", {"name": name, "seconds": seconds, "path": str(notes)})

    # From this both are known to take this long, for which batches may wait at them.
    assert [a.status_code for a in pool.map(ask, ["learn", "learn"], [1.5, 1.5])] == [200, 200]
    names = ["a", "b", "c", "d"]
    killed = server.describe("reserved")["workers"][0]["pid"]
    asked = {name: pool.submit(ask, name, 1.5) for name in names}
    wait_until(
        lambda: server.metric("modelserver_batches_in_flight", model_name="reserved") == 4,
        "two wait at their workers",
    )
    wait_until(lambda: len(notes.read_text().split()) == 4, "the other two have begun")
    os.kill(killed, signal.SIGKILL)
    answers = {name: future.result(PATIENCE) for name, future in asked.items()}
    lost = [name for name, answer in answers.items() if answer.status_code == 500]
    began = notes.read_text().split()[2:]

    assert sorted(answer.status_code for answer in answers.values()) == [200, 200, 200, 500]
    assert lost[0] in began[:2]
    assert sorted(began) == names
    assert killed not in {answer.json()["pid"] for answer in answers.values() if answer.status_code == 200}
