"""Handlers whose time varies: who waits for whom, and what the server reports of it."""

import math
import re
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

import httpx
import pytest
from tests.e2e.grpc_client import INFERENCE, PATIENCE, channel, grpc_server, predict, stub
from tests.e2e.serving import serving, wait_until

OCCUPIED = 0.07  # seconds for which the worker is busy with something else
NAP = 0.03
WAITED = 0.02  # what counts as having waited for that


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids="fronts: {}".format)
def server(request, tmp_path_factory, model_store):
    """REST and gRPC, one process or two front ends; ``naps`` in batches of two, which wait for none."""
    folder = tmp_path_factory.mktemp("durations")
    with serving(grpc_server(folder, model_store, frontend_processes=request.param)) as server:
        yield server.registered("naps.mar", batch_size=2, batch_policy="greedy")


def sleep(seconds):
    """An order for ``obey``."""
    return {"do": "sleep", "seconds": seconds}


def test_slow_request_holds_up_nobody(server, pool, tmp_path):
    """While one of two workers has a slow request, all that come after it are answered by the other."""
    server.registered("obey.mar", model_name="uneven", initial_workers=2)
    with server.occupied(pool, "uneven", tmp_path / "over") as slow:
        futures = [pool.submit(server.predict, "uneven", sleep(0.05)) for _ in range(7)]
        responses = [future.result(PATIENCE) for future in futures]

    assert [response.status_code for response in responses] == [200] * 7
    assert slow.result(PATIENCE).json()["pid"] not in {response.json()["pid"] for response in responses}


@dataclass(frozen=True)
class Report:
    """Seconds: what the client saw, and of that what the server reports of the queue and of the handler."""

    seen: float
    queue: float
    handler: float

    @property
    def rest(self):
        """What the client saw beyond that."""
        return self.seen - self.queue - self.handler


def timing(response):
    """Seconds in the queue and in the handler, as the header says."""
    queue, handler = re.findall(r"(?:queue|inference);dur=([0-9.]+)", response.headers["server-timing"])
    return float(queue) / 1e3, float(handler) / 1e3


class Sender:
    """Sends to the model ``naps`` over connections that are kept."""

    def __init__(self, server):
        self.server = server
        address = str(server.settings["inference_address"])
        self.http, self.other = (httpx.Client(base_url=address, trust_env=False) for _ in range(2))
        self.grpc = channel(server, "inference")
        self._predictions = stub(self.grpc, f"{INFERENCE}InferenceAPIsService").Predictions
        for client in (self.http, self.other):
            assert client.get("/ping").status_code == 200

    def close(self):
        self.grpc.close()
        self.http.close()
        self.other.close()

    def post(self, seconds=NAP, client=None):
        """A request, by what its headers report."""
        began = time.perf_counter()
        response = (client or self.http).post("/predictions/naps", content=str(seconds))
        seen = time.perf_counter() - began
        assert response.status_code == 200, response.text
        return Report(seen, *timing(response))

    def call(self):
        """A call of gRPC, whose answer reports nothing."""
        began = time.perf_counter()
        self._predictions(predict("naps", data=str(NAP).encode()), timeout=PATIENCE)
        return Report(time.perf_counter() - began, 0.0, 0.0)

    def counted(self):
        """The seconds of queue and of handlers that the metrics count so far."""
        queue = self.server.metric("ts_queue_latency_microseconds", model_name="naps") / 1e6
        return queue, self.server.metric("modelserver_handler_seconds_sum", model_name="naps")

    def behind_another(self, send):
        """Of the request that keeps the worker busy, and of the one that waits for it."""
        first = Future[Report]()
        other = threading.Thread(target=lambda: first.set_result(self.post(OCCUPIED, self.other)))
        other.start()
        wait_until(
            lambda: first.done() or self.server.metric("modelserver_batches_in_flight", model_name="naps"),
            "the worker is busy, or was",
        )
        second = send()
        other.join()
        return first.result(0), second


@pytest.fixture
def sender(server):
    """Two connections, and one of gRPC."""
    made = Sender(server)
    yield made
    made.close()


def least(take, enough=None):
    """The least of three; of twenty if it is to be small ``enough``: the first that is ends them."""
    lowest = take()
    for _ in range(2 if enough is None else 19):
        if enough is not None and lowest < enough:
            break
        lowest = min(lowest, take())
    return lowest


@pytest.mark.alone
def test_headers_add_up_to_what_the_client_saw(sender):
    """Behind a busy worker, queue and inference of ``server-timing`` leave hardly more of a request's time
    than of one that finds the worker free: another millisecond, or as much again on a machine on which that
    takes longer.
    """
    free = least(lambda: sender.post().rest)
    bound = free + max(free, 0.001)

    def once():
        _, second = sender.behind_another(sender.post)
        assert second.rest >= 0
        return second.rest if second.queue > WAITED else math.inf

    assert least(once, bound) < bound


@pytest.mark.alone
def test_metrics_add_up_to_what_the_client_saw(sender):
    """So does what the metrics count for a call of gRPC, whose answer cannot report it."""

    def alone():
        (queue, handler), seen = sender.counted(), sender.call().seen
        after = sender.counted()
        return Report(seen, after[0] - queue, after[1] - handler).rest

    def behind():
        before = sender.counted()
        first, second = sender.behind_another(sender.call)
        queue, handler = (now - then for now, then in zip(sender.counted(), before, strict=True))
        counted = Report(second.seen, queue - first.queue, handler - first.handler)
        assert counted.rest >= -0.0005  # headers and metrics of the first are rounded
        return counted.rest if counted.queue > WAITED else math.inf

    free = least(alone)
    bound = free + max(free, 0.001)

    assert least(behind, bound) < bound


def test_time_behind_others_is_counted_wherever_it_is_spent(server, pool, tmp_path):
    """Of three requests that wait for one worker, the second waits for one more than the first and the third
    for two, whether in the queue or at the worker: headers and metrics agree on it. A request whose batch
    failed for another's sake is computed once more, and its header has both runs.
    """
    server.registered("obey.mar", model_name="three")

    def counted():
        queue = server.metric("ts_queue_latency_microseconds", model_name="three") / 1e6
        return queue, server.metric("ts_inference_latency_microseconds", model_name="three") / 1e6

    before = counted()
    with server.occupied(pool, "three", tmp_path / "all wait") as busy:
        waiting = [pool.submit(server.predict, "three", sleep(0.2)) for _ in range(3)]
        server.wait_arrived("three", 4)
    responses = [future.result(PATIENCE) for future in (busy, *waiting)]
    queue, latency = (now - then for now, then in zip(counted(), before, strict=True))
    waits, handlers = zip(*map(timing, responses), strict=True)

    # Headers are rounded; what the server counts is within what clients saw.
    seen = sum(response.elapsed.total_seconds() for response in responses)
    assert all(wait > 0.2 * others - 0.001 for others, wait in enumerate(sorted(waits[1:])))
    assert queue == pytest.approx(sum(waits), abs=0.001)
    assert queue + sum(handlers) - 0.001 < latency < seen

    server.registered("obey.mar", model_name="retried", batch_size=2, max_batch_delay=5000)
    good, bad = pool.map(lambda order: server.predict("retried", order), (sleep(0.1), {"do": "raise"}))
    assert (good.status_code, bad.status_code) == (200, 503)
    assert timing(good)[1] > 0.1
