"""Waiting: full queues, deadlines, models that leave (design 5)."""

import psutil
import pytest
from tests.e2e.raw import converse, post
from tests.e2e.serving import queue_ms, wait_until


@pytest.fixture
def model(shared_server, request):
    """Registers a model of its own for the test: ``model(archive, **parameters)`` returns its name."""
    names = []

    def register(url, **parameters):
        name = request.node.name.replace("[", "-").replace("]", "")[:60] + str(len(names))
        shared_server.registered(url, model_name=name, **parameters)
        names.append(name)
        return name

    yield register
    for name in names:
        shared_server.unregister(name)


def test_requests_that_wait_share_a_batch(shared_server, model, pool, tmp_path):
    """What gathers behind a busy worker; with an explicit delay a lone request waits for others (F26)."""
    name = model("obey.mar", batch_size=16, batch_policy="greedy")
    with shared_server.occupied(pool, name, tmp_path / "over") as busy:
        futures = [pool.submit(shared_server.predict, name, {}) for _ in range(10)]
        shared_server.wait_pending(name, 10)

    assert {future.result(10).headers["x-batch-size"] for future in futures} == {"10"}
    assert busy.result(10).headers["x-batch-size"] == "1"
    delayed = model("obey.mar", batch_size=8, max_batch_delay=150)
    assert queue_ms(shared_server.predict(delayed, {})) > 145


def test_full_queue_refuses_at_once(start_server, pool, tmp_path):
    """Each new request is refused with 503 and Retry-After, for less than 10 ms of a processor; what was
    accepted is served (F30). What waits is bounded in bytes too, smaller ones are taken (F31).
    """
    server = start_server(job_queue_size=2, job_queue_bytes=1_000_000)
    server.registered("obey.mar").registered("obey.mar", model_name="bytes")
    process = psutil.Process(server.pid)
    with server.occupied(pool, "obey", tmp_path / "over") as busy:
        # A full batch may wait at the worker already: it is no longer in the queue.
        waiting = [pool.submit(server.predict, "obey", {}) for _ in range(3)]
        server.wait_pending("obey", 2)
        refused = server.predict("obey", {})
        by_v1 = server.v1("obey", [1])
        before = sum(process.cpu_times()[:2])
        request = post("/predictions/obey", b"{}", "Connection: close")
        answers = [converse(server.port, request) for _ in range(50)]
        spent = sum(process.cpu_times()[:2]) - before

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["type"] == "ServiceUnavailableException"
    assert by_v1.status_code == 503
    assert all(answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer for answer in answers)
    assert spent / 50 < 0.01
    assert server.metric("modelserver_rejected_total", reason="requests") == 52

    large = {"do": "nothing", "filling": "f" * 600_000}
    with server.occupied(pool, "bytes", tmp_path / "over, too") as busy_too:
        # One may wait at the worker already: it is no longer in the queue.
        futures = [pool.submit(server.predict, "bytes", large) for _ in range(4)]
        wait_until(lambda: sum(future.done() for future in futures) >= 2, "some are refused")
    statuses = [future.result(10).status_code for future in futures]
    assert sorted(set(statuses)) == [200, 503]
    assert server.metric("modelserver_rejected_total", reason="bytes") == statuses.count(503)
    assert [future.result(10).status_code for future in (busy, busy_too, *waiting)] == [200] * 5
    assert server.predict("bytes", {}).status_code == 200


def test_deadline_ends_a_request(shared_server, model, pool, tmp_path):
    """A request whose deadline passes while it waits is answered 504 then, and never computed; one that runs
    is answered then too, and its worker is kept (F33, F34). The batcher's ``timeout`` in seconds is one for
    every request; V1 says so under ``error``.
    """
    name = model("obey.mar", batch_size=2, batch_policy="greedy")
    before = shared_server.predict(name, {}).json()["pid"]
    with shared_server.occupied(pool, name, tmp_path / "over") as busy:
        queued = shared_server.predict(name, {}, headers={"x-request-timeout-ms": "200"})

    assert (queued.status_code, queued.json()["type"]) == (504, "RequestTimeoutException")
    assert queued.elapsed.total_seconds() > 0.19
    assert busy.result(10).status_code == 200
    assert shared_server.metric("modelserver_expired_total", model_name=name) == 1
    assert shared_server.metric("modelserver_batch_size_count", model_name=name) == 2

    hangs = {"do": "wait", "file": str(tmp_path / "late")}
    running = shared_server.predict(name, hangs, headers={"x-request-timeout-ms": "100"})
    assert running.status_code == 504
    assert shared_server.metric("modelserver_batches_in_flight", model_name=name) == 1
    batcher = model("obey.mar", max_batch_size=2, max_latency=10, timeout=1)
    late = shared_server.v1(batcher, [hangs])
    (tmp_path / "late").touch()
    assert (late.status_code, "deadline" in late.json()["error"]) == (504, True)
    assert shared_server.describe(batcher)["clientTimeoutInMills"] == 1000
    assert shared_server.predict(name, {}).json()["pid"] == before


@pytest.mark.parametrize("how", ["unregistered", "scaled to none"])
def test_requests_of_a_model_that_leaves_are_answered(shared_server, pool, tmp_path, how):
    """What runs and what waits is served, nothing new comes in (F50)."""
    shared_server.registered("obey.mar", model_name="leaving")
    management = shared_server.management
    with shared_server.occupied(pool, "leaving", tmp_path / "over") as busy:
        waiting = [pool.submit(shared_server.predict, "leaving", {}) for _ in range(6)]
        # One may wait at the worker already.
        wait_until(
            lambda: shared_server.metric("modelserver_queue_requests", model_name="leaving") >= 5, "wait"
        )
        if how == "unregistered":
            change = pool.submit(management.delete, "/models/leaving")
            wait_until(lambda: management.get("/models/leaving").status_code == 404, "it leaves")
        else:
            change = pool.submit(management.put, "/models/leaving?min_worker=0&synchronous=true")
            wait_until(lambda: shared_server.describe("leaving")["minWorkers"] == 0, "it is scaled")
    statuses = {future.result(10).status_code for future in waiting}

    assert (busy.result(10).status_code, change.result(10).status_code) == (200, 200)
    assert statuses <= {200} if how == "unregistered" else statuses <= {200, 503}
    late = shared_server.predict("leaving", {}).status_code
    assert late == (404 if how == "unregistered" else 503)
    if how != "unregistered":
        shared_server.unregister("leaving")
