"""Batch settings are changed while requests come in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.load import Load, is_echo


@pytest.fixture
def echo(shared_server):
    """The echo model under a name of its own."""
    shared_server.registered("echo.mar", model_name="live", batch_size=2, max_batch_delay=20)
    yield shared_server
    shared_server.unregister("live")


def change(server, name: str = "live", **parameters: object):
    return server.management.put(f"/models/{name}", params={k: str(v) for k, v in parameters.items()})


def test_changes_are_described(echo):
    """What is named changes, alone or together with workers; describe shows it. A value that is none or out
    of range, an unknown model or version changes nothing.
    """
    response = change(echo, batch_size=8, max_batch_delay=5, batch_policy="greedy", response_timeout=9)
    assert (response.status_code, response.json()["status"]) == (
        200,
        'Model "live" changed: batch_size=8, max_batch_delay=5, batch_policy=greedy, response_timeout=9',
    )
    assert change(echo, batch_size=3, min_worker=2, synchronous="true").status_code == 200
    values: tuple[tuple[str, object], ...] = (
        ("batch_size", -7), ("batch_size", 2_000_000), ("batch_policy", "often"), ("batch_size", "many"),
        ("response_timeout", "2.5"), ("autoscale", "perhaps"),
    )  # fmt: skip
    for name, value in values:
        refused = change(echo, **{name: value})
        assert (refused.status_code, name in refused.text) == (400, True)
    assert change(echo, batch_size=4, min_worker=3, max_worker=1).status_code == 400
    assert [change(echo, name, batch_size=4).status_code for name in ("none", "live/9")] == [404, 404]
    nothing = change(echo, batch_size=0, max_batch_delay=-1)
    assert (nothing.status_code, "nothing to change" in nothing.text) == (400, True)

    described = echo.describe("live")
    fields = [described[key] for key in ("batchSize", "maxBatchDelay", "responseTimeout", "minWorkers")]
    assert fields == [3, 5, 9, 2]
    assert described["batching"]["policy"]["value"] == "greedy"


def test_no_request_is_dropped(echo):
    """While settings change, each of many requests gets its own answer."""
    with Load(echo, "live", is_own=is_echo) as load:
        for number in range(40):
            size, policy = (1, 8, 3, 32)[number % 4], ("greedy", "window", "adaptive")[number % 3]
            response = change(echo, batch_size=size, max_batch_delay=number % 7, batch_policy=policy)
            assert response.status_code == 200, response.text
            load.more(5)

    assert set(load.statuses) == {200}
    assert load.wrong == []


def test_batch_that_grows_may_have_larger_answers(start_server):
    """What a running worker may send at once grows with the batch size; the guilty are identified in a batch
    that is larger than the worker was started for (F18).
    """
    server = start_server(max_response_size=100_000).registered("obey.mar", batch_size=1)
    settings = {"batch_size": "32", "max_batch_delay": "20000", "batch_policy": "window"}
    assert change(server, "obey", **settings).status_code == 200
    with ThreadPoolExecutor(32) as clients:
        orders = [{"do": "big", "bytes": 90_000}] * 32
        large = list(clients.map(lambda order: server.predict("obey", order), orders))
        orders = [{"do": "raise" if number in (3, 11) else "nothing"} for number in range(32)]
        mixed = list(clients.map(lambda order: server.predict("obey", order), orders))

    assert {(response.status_code, len(response.content)) for response in large} == {(200, 90_000)}
    assert {response.headers["x-batch-size"] for response in large} == {"32"}
    assert [response.status_code for response in mixed] == [503 if n in (3, 11) else 200 for n in range(32)]
    assert server.metric("modelserver_workers", state="failed") == 0
