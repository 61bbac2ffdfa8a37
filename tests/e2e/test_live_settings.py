"""Batch settings are changed while requests come in."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.serving import Server, wait_until


@pytest.fixture
def echo(shared_server: Server):
    """The echo model under a name of its own."""
    shared_server.registered("echo.mar", model_name="live", batch_size=2, max_batch_delay=20)
    yield shared_server
    shared_server.unregister("live")


def change(server: Server, **parameters: object):
    return server.management.put("/models/live", params={k: str(v) for k, v in parameters.items()})


def test_changes_are_shown(echo):
    """What is named changes, workers stay as they are, and describe tells it."""
    answer = change(echo, batch_size=8, max_batch_delay=5, batch_policy="greedy", response_timeout=9)
    assert (answer.status_code, answer.json()["status"]) == (
        200,
        'Model "live" changed: batch_size=8, max_batch_delay=5, batch_policy=greedy, response_timeout=9',
    )
    described = echo.describe("live")
    shown = [described[key] for key in ("batchSize", "maxBatchDelay", "responseTimeout", "minWorkers")]

    assert shown == [8, 5, 9, 1]
    assert described["batching"]["policy"]["value"] == "greedy"


def test_refused_changes(echo):
    """A value that is none or out of range, an unknown model or version changes nothing."""
    assert change(echo, batch_size=-7).status_code == 400
    assert change(echo, batch_policy="often").status_code == 400
    assert change(echo, batch_size=4, min_worker=3, max_worker=1).status_code == 400
    assert change(echo, batch_size=2_000_000).status_code == 400
    assert echo.management.put("/models/none", params={"batch_size": "4"}).status_code == 404
    assert echo.management.put("/models/live/9", params={"batch_size": "4"}).status_code == 404
    for given in ({"batch_size": "many"}, {"response_timeout": "2.5"}, {"autoscale": "perhaps"}):
        answer = change(echo, **given)
        [(name, value)] = given.items()
        assert (answer.status_code, f"{name}={value}: " in answer.text) == (400, True)
    nothing = change(echo, batch_size=0, max_batch_delay=-1)
    assert (nothing.status_code, "nothing to change" in nothing.text) == (400, True)

    assert echo.describe("live")["batchSize"] == 2
    assert echo.describe("live")["minWorkers"] == 1


def test_change_with_workers(echo):
    """Workers and settings may be changed at once."""
    assert change(echo, batch_size=3, min_worker=2, synchronous="true").status_code == 200

    assert (echo.describe("live")["batchSize"], echo.describe("live")["minWorkers"]) == (3, 2)


def test_no_request_is_dropped(echo):
    """While settings change, each of many requests gets its own answer."""
    results: Counter[bool] = Counter()

    def ask(client: int) -> None:
        for number in range(60):
            body = f"{client}-{number}".encode()
            answer = echo.predict("live", body)
            results[answer.status_code == 200 and answer.content == body] += 1

    clients = [threading.Thread(target=ask, args=(client,)) for client in range(6)]
    for client in clients:
        client.start()
    changes = 0
    while any(client.is_alive() for client in clients):
        size = (1, 8, 3, 32)[changes % 4]
        policy = ("greedy", "window", "adaptive")[changes % 3]
        answer = change(echo, batch_size=size, max_batch_delay=changes % 7, batch_policy=policy)
        assert answer.status_code == 200, answer.text
        changes += 1
    for client in clients:
        client.join()

    assert changes > 1
    assert results == {True: 360}


def test_a_larger_batch_may_have_larger_answers(start_server):
    """What a running worker may send at once grows with the batch size."""
    server = start_server(max_response_size=100_000).registered("obey.mar", batch_size=1)
    settings = {"batch_size": "32", "max_batch_delay": "2000", "batch_policy": "window"}
    assert server.management.put("/models/obey", params=settings).status_code == 200
    with ThreadPoolExecutor(32) as clients:
        orders = [{"do": "big", "bytes": 90_000}] * 32
        answers = list(clients.map(lambda order: server.predict("obey", order), orders))

    assert {(answer.status_code, len(answer.content)) for answer in answers} == {(200, 90_000)}
    assert {answer.headers["x-batch-size"] for answer in answers} == {"32"}
    assert server.metric("modelserver_workers", state="failed") == 0


def test_timeout_of_a_running_batch(shared_server):
    """A response timeout that is made shorter counts for what runs already."""
    shared_server.registered("obey.mar", model_name="slow", response_timeout=100)
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(shared_server.predict, "slow", {"do": "sleep", "seconds": 60})
        wait_until(
            lambda: shared_server.metric("modelserver_batches_in_flight", model_name="slow"), "it runs"
        )
        shared_server.management.put("/models/slow", params={"response_timeout": "1"})
        answer = asked.result(20)

    assert answer.status_code == 500
    assert shared_server.describe("slow")["responseTimeout"] == 1
    shared_server.unregister("slow")


def test_one_bad_request_in_a_grown_batch(shared_server):
    """The guilty are found in a batch that is larger than the worker was started for (F18)."""
    shared_server.registered("obey.mar", model_name="grown", batch_size=1)
    settings = {"batch_size": "16", "max_batch_delay": "2000", "batch_policy": "window"}
    shared_server.management.put("/models/grown", params=settings)
    orders = [{"do": "raise" if number in (3, 11) else "nothing"} for number in range(16)]
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda order: shared_server.predict("grown", order), orders))

    assert [answer.status_code for answer in answers] == [503 if n in (3, 11) else 200 for n in range(16)]
    shared_server.unregister("grown")
