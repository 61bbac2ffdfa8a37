"""Workers that have grown or served enough are replaced while requests come (fault 46)."""

from __future__ import annotations

import threading

import pytest
from tests.e2e.serving import wait_until


def under_load(server, enough):
    """All statuses that clients saw who asked until ``enough`` was the case."""
    done = threading.Event()
    statuses: list[list[int]] = [[] for _ in range(4)]

    def ask(mine):
        while not done.is_set():
            mine.append(server.predict("leaks", b"x").status_code)

    clients = [threading.Thread(target=ask, args=(mine,)) for mine in statuses]
    for client in clients:
        client.start()
    try:
        wait_until(enough, "workers are recycled")
    finally:
        done.set()
        for client in clients:
            client.join()
    return [status for mine in statuses for status in mine]


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("requests", {"max_worker_requests": 20}),
        pytest.param("memory", {"max_worker_memory": 120 << 20}, marks=pytest.mark.slow),
    ],
)
def test_recycled_under_load(shared_server, reason, limit):
    """No request fails; the log and a metric tell of it."""
    server = shared_server.registered("leaks.mar", initial_workers=2, **limit)
    before = {worker.pid for worker in server.workers()}

    def recycled():
        count = server.metric("modelserver_workers_recycled_total", model_name="leaks", reason=reason)
        return count >= 2 and not before & {worker.pid for worker in server.workers()}

    statuses = under_load(server, recycled)
    assert set(statuses) == {200}
    assert len(statuses) > 40
    assert len(server.describe("leaks")["workers"]) == 2
    server.home.wait_for_log("is recycled: it has ")
    wait_until(lambda: len(server.workers()) <= 3, "the old ones leave")
    server.unregister("leaks")


def test_limits_change_while_it_runs(shared_server):
    """They are set and lifted by scaling's call, and described."""
    shared_server.registered("leaks.mar")
    answer = shared_server.management.put("/models/leaks?max_worker_requests=1")
    assert answer.json() == {"status": 'Model "leaks" changed: max_worker_requests=1'}
    assert shared_server.describe("leaks")["maxWorkerRequests"] == 1
    first = shared_server.predict("leaks", b"x").text
    wait_until(lambda: shared_server.predict("leaks", b"x").text != first, "it is recycled")
    answer = shared_server.management.put("/models/leaks?max_worker_requests=0&max_worker_memory=-1")
    assert answer.status_code == 400
    assert "max_worker_memory=-1: a whole number of at least 0 is needed" in answer.json()["message"]
    shared_server.unregister("leaks")
