"""Waiting: policies as behaviour, full queues, deadlines, clients that leave (design 5)."""

from __future__ import annotations

import json

import pytest
from tests.e2e.raw import connect, post
from tests.e2e.serving import queue_ms, wait_until


@pytest.fixture
def model(shared_server, request):
    """Registers a model of its own for the test: ``model(archive, **parameters)`` gives its name."""
    names = []

    def register(url, **parameters):
        name = request.node.name.replace("[", "-").replace("]", "")[:60] + str(len(names))
        shared_server.registered(url, model_name=name, **parameters)
        names.append(name)
        return name

    yield register
    for name in names:
        shared_server.unregister(name)


def sleep(seconds, **fields):
    """An order to keep the worker busy."""
    return {"do": "sleep", "seconds": seconds, **fields}


def occupy(server, pool, name, seconds=0.6):
    """Keeps the model's one worker busy; the returned future is the answer."""
    future = pool.submit(server.predict, name, sleep(seconds))
    wait_until(
        lambda: server.metric("modelserver_batches_in_flight", model_name=name) == 1, "the worker is busy"
    )
    return future


def test_default_waits_for_nobody(shared_server, model):
    """Without a delay asked for, a lone request on an idle model does not wait for company (F26)."""
    name = model("obey.mar", batch_size=8)

    assert min(queue_ms(shared_server.predict(name, {})) for _ in range(5)) < 20
    assert shared_server.describe(name)["batching"]["policy"] == {"value": "adaptive", "source": "default"}


def test_explicit_delay_is_a_window(shared_server, model):
    """With a delay asked for, a lone request waits it out."""
    name = model("obey.mar", batch_size=8, max_batch_delay=150)

    assert 145 < queue_ms(shared_server.predict(name, {})) < 1000


def test_time_behind_a_busy_worker_counts(shared_server, model, pool):
    """What waited for a busy worker longer than its window goes as soon as the worker is free."""
    name = model("obey.mar", batch_size=8, max_batch_delay=200)
    busy = occupy(shared_server, pool, name, 1.0)
    late = shared_server.predict(name, {})

    assert busy.result(10).status_code == 200
    assert queue_ms(late) < 1150


def test_what_waits_is_batched(shared_server, model, pool):
    """What gathers behind a busy worker leaves in one batch."""
    name = model("obey.mar", batch_size=16, batch_policy="greedy")
    busy = occupy(shared_server, pool, name)
    futures = [pool.submit(shared_server.predict, name, sleep(0)) for _ in range(10)]
    shared_server.wait_pending(name, 10)

    assert {future.result(10).headers["x-batch-size"] for future in futures} == {"10"}
    assert busy.result(10).headers["x-batch-size"] == "1"


def test_two_workers_work_at_once(shared_server, model, pool):
    """Batches of one model run on its workers at the same time."""
    name = model("obey.mar", initial_workers=2)
    answers = list(pool.map(lambda _: shared_server.predict(name, sleep(0.4)).json()["pid"], range(2)))

    assert len(set(answers)) == 2


def test_full_queue(shared_server, model, pool, start_server):
    """A full queue refuses at once with 503 and Retry-After; what was accepted is served (F30)."""
    server = start_server(job_queue_size=2).registered("obey.mar")
    busy = occupy(server, pool, "obey", 1.0)
    # A full batch may wait at the worker already: it is no longer in the queue.
    waiting = [pool.submit(server.predict, "obey", sleep(0)) for _ in range(3)]
    server.wait_pending("obey", 2)
    refused = server.predict("obey", {})

    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["type"] == "ServiceUnavailableException"
    assert refused.elapsed.total_seconds() < 0.5
    assert server.v1("obey", [1]).status_code == 503
    assert [future.result(10).status_code for future in (busy, *waiting)] == [200] * 4
    assert server.metric("modelserver_rejected_total", reason="requests") == 2
    assert server.predict("obey", {}).status_code == 200


def test_deadline_while_queued(shared_server, model, pool):
    """A request whose deadline passes while the worker is busy is answered 504 then, and
    never computed (F33).
    """
    name = model("obey.mar", batch_size=2, batch_policy="greedy")
    busy = occupy(shared_server, pool, name, 1.0)
    late = shared_server.predict(name, sleep(0), headers={"x-request-timeout-ms": "200"})

    assert not busy.done()
    assert (late.status_code, late.json()["type"]) == (504, "RequestTimeoutException")
    assert 0.19 < late.elapsed.total_seconds() < 0.8
    assert busy.result(10).status_code == 200
    assert shared_server.metric("modelserver_expired_total", model_name=name) == 1
    assert shared_server.metric("modelserver_batch_size_count", model_name=name) == 1


def test_deadline_while_running(shared_server, model):
    """A request whose deadline passes while it runs is answered 504 then; the worker is kept (F34)."""
    name = model("obey.mar")
    before = shared_server.predict(name, {}).json()["pid"]
    late = shared_server.predict(name, sleep(0.6), headers={"x-request-timeout-ms": "100"})

    assert late.status_code == 504
    assert late.elapsed.total_seconds() < 0.5
    assert shared_server.predict(name, {}).json()["pid"] == before


def test_deadline_of_the_batcher(shared_server, model):
    """The batcher's ``timeout`` in seconds bounds every request; V1 says so under ``error``."""
    name = model("obey.mar", max_batch_size=2, max_latency=10, timeout=1)
    late = shared_server.v1(name, [sleep(1.4)])

    assert late.status_code == 504
    assert "deadline" in late.json()["error"]
    assert shared_server.describe(name)["clientTimeoutInMills"] == 1000


def test_deadline_is_kept_by_the_window(shared_server, model):
    """A window longer than the deadline does not keep a request waiting past it."""
    name = model("obey.mar", batch_size=8, max_batch_delay=5000)
    answer = shared_server.predict(name, {}, headers={"x-request-timeout-ms": "700"})

    assert answer.status_code in {200, 504}
    assert answer.elapsed.total_seconds() < 2


def test_client_that_leaves(shared_server, model, pool):
    """A client that leaves takes its queued work with it, and is counted (F24, F37)."""
    name = model("obey.mar", batch_size=2, batch_policy="greedy")
    busy = occupy(shared_server, pool, name, 1.0)
    body = json.dumps(sleep(0)).encode()
    with connect(shared_server.port) as client:
        client.sendall(post(f"/predictions/{name}", body, "Content-Type: application/json"))
        shared_server.wait_pending(name, 1)
    shared_server.wait_pending(name, 0)

    assert not busy.done()
    assert shared_server.metric("modelserver_cancelled_total", model_name=name) == 1
    assert busy.result(10).status_code == 200
    assert shared_server.metric("modelserver_batch_size_count", model_name=name) == 1


def test_client_that_leaves_while_it_is_computed(shared_server, model, pool):
    """A client that leaves during its batch costs its neighbours nothing, nor the worker (F24)."""
    name = model("obey.mar", batch_size=2, max_batch_delay=300)
    body = json.dumps(sleep(0.3)).encode()
    with connect(shared_server.port) as client:
        client.sendall(post(f"/predictions/{name}", body, "Content-Type: application/json"))
        shared_server.wait_pending(name, 1)
        other = pool.submit(shared_server.predict, name, sleep(0, token="kept"))
        wait_until(
            lambda: shared_server.metric("modelserver_batches_in_flight", model_name=name) == 1,
            "the batch goes",
        )

    assert other.result(10).json()["token"] == "kept"
    assert shared_server.metric("modelserver_cancelled_total", model_name=name) == 1
    wait_until(
        lambda: shared_server.metric("modelserver_batches_in_flight", model_name=name) == 0, "it is done"
    )


def test_queued_work_of_an_unregistered_model(shared_server, model, pool):
    """Unregistering serves what runs and what still waits; nothing new comes in (F50)."""
    shared_server.registered("obey.mar", model_name="leaving")
    busy = occupy(shared_server, pool, "leaving", 0.8)
    waiting = [pool.submit(shared_server.predict, "leaving", sleep(0)) for _ in range(6)]
    wait_until(
        lambda: shared_server.describe("leaving")["jobQueueStatus"]["pendingRequests"] >= 5, "they wait"
    )
    shared_server.unregister("leaving")
    statuses = [future.result(10).status_code for future in waiting]

    assert busy.result(10).status_code == 200
    assert statuses == [200] * 6
    assert shared_server.predict("leaving", sleep(0)).status_code == 404


def test_scaling_to_nothing_with_a_queue(shared_server, model, pool):
    """Scaling to 0 answers what waits and finishes what runs (F50)."""
    name = model("obey.mar")
    busy = occupy(shared_server, pool, name, 0.8)
    waiting = [pool.submit(shared_server.predict, name, sleep(0)) for _ in range(6)]
    wait_until(lambda: shared_server.describe(name)["jobQueueStatus"]["pendingRequests"] >= 5, "they wait")
    shared_server.management.put(f"/models/{name}?min_worker=0&synchronous=true")
    statuses = [future.result(10).status_code for future in waiting]

    assert busy.result(10).status_code == 200
    assert set(statuses) <= {200, 503}
