from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.load import Load, is_echo


@pytest.fixture
def echo(shared_server):
    shared_server.registered("echo.mar", model_name="live", batch_size=2, max_batch_delay=20)
    yield shared_server
    shared_server.unregister("live")


def change(server, name="live", **parameters):
    return server.management.put(f"/models/{name}", params={k: str(v) for k, v in parameters.items()})


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
