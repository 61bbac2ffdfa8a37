"""Workers as if on other machines: what works with them, and what their users meet when something breaks."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.e2e.conftest import MODEL_CODE
from tests.e2e.elsewhere import LOST, Load, elsewhere, freezing, store_beside
from tests.e2e.serving import wait_until
from tests.e2e.test_distributed import pack

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """One for all tests that do not end it, with a model whose requests may run twice."""
    folder = tmp_path_factory.mktemp("c")
    store = store_beside(model_store, folder)
    pack(store, "again", (MODEL_CODE / "witness.py").read_text(), "idempotent: true\nbatchSize: 4\n")
    heavy = f"# {os.urandom(2_000_000).hex()}\n{(MODEL_CODE / 'witness.py').read_text()}"
    pack(store, "heavy", heavy, "batchSize: 4\n")
    with elsewhere(folder, store) as one:
        yield one


@pytest.fixture
def model(server, request):
    """Registers an archive until the end of the test."""
    names = []

    def registered(archive, **parameters):
        server.registered(f"{archive}.mar", **parameters)
        names.append(parameters.get("model_name", archive))
        return names[-1]

    yield registered
    for name in names:
        server.unregister(name)


# -- faults, under load


def test_killed_and_frozen_machines(server, model):
    """Agents and workers that are killed, or frozen for longer than ``worker_lost_timeout``, are replaced;
    each request gets exactly one answer, its own, and only what had begun there fails.
    """
    name = model("witness", batch_size=4, initial_workers=3)
    with Load(server, name) as load:
        server.agents(name)[0].kill()
        print("agent killed: noticed, replaced", server.wait_lost_and_replaced(name, 1, 3))
        server.agents(name)[1].children()[0].kill()
        print("worker killed: noticed, replaced", server.wait_lost_and_replaced(name, 1, 3))
        frozen = server.agents(name)[2]
        with freezing(frozen, *frozen.children()):
            noticed, replaced = server.wait_lost_and_replaced(name, 1, 3)
        print("frozen: noticed, replaced", (noticed, replaced))
        assert noticed > LOST / 2
        wait_until(lambda: not frozen.is_running(), "it notices that it was given up")
    print("answers", dict(load.statuses))
    assert load.wrong == []
    assert set(load.statuses) <= {200, 500}
    assert load.statuses[500] <= 3 * 3 * 4
    assert all("Worker died." in error for error in load.errors)


def test_requests_that_may_run_twice(server, model):
    """With ``idempotent: true``, what a lost machine had begun is tried again: no request fails."""
    name = model("again", initial_workers=2)
    with Load(server, name) as load:
        for _ in range(2):
            server.agents(name)[0].kill()
            server.wait_lost_and_replaced(name, 1, 2)
    assert set(load.statuses) == {200}
    assert load.wrong == []


def test_a_short_pause_of_a_machine(server, model):
    """A machine that stops for less than ``worker_lost_timeout``, or is slow, keeps its worker; no request
    fails, and none waits for long.
    """
    name = model("witness", batch_size=4, initial_workers=2)
    before = server.describe(name)["workers"]
    paused = server.agents(name)[0]
    with Load(server, name) as load:
        with freezing(paused, *paused.children()):
            time.sleep(LOST / 2)
        time.sleep(0.5)
    assert load.slowest < LOST
    with Load(server, name) as slow_load:
        for _ in range(20):
            with freezing(paused, *paused.children()):
                time.sleep(0.09)
            time.sleep(0.01)
    assert slow_load.slowest < LOST
    assert set(load.statuses) == set(slow_load.statuses) == {200}
    assert load.wrong == slow_load.wrong == []
    assert [each["pid"] for each in server.describe(name)["workers"]] == [each["pid"] for each in before]


def test_no_machine_is_left(server, model):
    """Requests are refused with Retry-After at once, and served again once there are machines."""
    name = model("witness", initial_workers=2)
    agents = server.agents(name)
    with Load(server, name, clients=2) as load:
        for agent in agents:
            agent.kill()
        server.wait_lost_and_replaced(name, 2, 2)
        before = load.statuses[200]
        wait_until(lambda: load.statuses[200] > before, "it serves again")
    assert load.wrong == []
    assert load.statuses[503]
    assert load.slowest < 5


def test_a_network_that_stalls(server, model):
    """Workers behind a slow network serve; a stall shorter than ``worker_lost_timeout`` costs nothing, after
    a longer one they are replaced, and what comes late from the old ones reaches nobody.
    """
    with server.detour() as proxy:
        name = model("witness", batch_size=4, initial_workers=2)
        server.end_detour()
        server.management.put(f"/models/{name}?min_worker=3&synchronous=true")
        with Load(server, name) as load:
            proxy.latency = 0.02
            time.sleep(1)
            proxy.stall()
            time.sleep(LOST / 3)
            proxy.resume()
            time.sleep(0.5)
            assert set(load.statuses) == {200}
            proxy.latency = 0.0
            pids = {worker["pid"] for worker in server.describe(name)["workers"]}
            proxy.stall()
            print("stalled: noticed, replaced", server.wait_lost_and_replaced(name, 2, 3))
            proxy.resume()
            time.sleep(0.5)
            assert len(pids & {worker["pid"] for worker in server.describe(name)["workers"]}) == 1
    print("answers", dict(load.statuses))
    assert load.wrong == []
    assert set(load.statuses) <= {200, 500}
    assert load.statuses[500] <= 2 * 2 * 4


def test_a_transfer_that_is_torn(server, model):
    """It goes on over another connection, and the model is served."""
    with server.detour() as proxy, ThreadPoolExecutor(1) as pool:
        proxy.rate = 1e6
        registered = pool.submit(model, "heavy")
        wait_until(lambda: proxy.accepted == 2, "its files are fetched")
        time.sleep(0.3)
        assert not registered.done()
        proxy.cut(last=True)
        wait_until(lambda: proxy.accepted == 3, "the rest is fetched")
        proxy.rate = 0.0
        name = registered.result()
        assert server.predict(name, b"mark").text.startswith(f"{name}|mark|")


def test_server_that_is_killed(tmp_path, model_store):
    """Its agents and workers end within seconds; started again, it has its models and places them anew.
    SIGTERM answers what is in flight, and SIGINT ends it while workers are being placed.
    """
    with elsewhere(tmp_path, model_store) as server:
        server.registered("obey.mar", initial_workers=2)
        processes = [*server.agents(), *server.workers()]
        server.process.kill()
        began = time.monotonic()
        _, alive = psutil.wait_procs(processes, 10)
        assert alive == []
        print("gone after", time.monotonic() - began)
        server.started_again()
        server.wait_ready("obey", 2)
        with ThreadPoolExecutor(4) as pool:
            order = {"do": "sleep", "seconds": 1}
            asked = [pool.submit(server.predict, "obey", order) for _ in range(4)]
            time.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            assert [each.result().status_code for each in asked] == [200] * 4
        server.started_again()
        server.wait_ready("obey", 2)
        placing = threading.Thread(target=server.register, args=("slow_start.mar",))
        placing.start()
        wait_until(lambda: len(server.agents()) == 3, "it is being placed")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
        placing.join()
        assert "Traceback" not in server.home.output()


# -- what works as on the server's machine


def test_a_worker_is_shown_with_its_machine(server, model):
    """Describe names node, pid and memory; the log and the metrics name the node; many megabytes of output
    are bounded, and the worker answers on.
    """
    name = model("obey")
    assert server.predict(name, {"do": "print", "megabytes": 20}).text == "printed"
    assert server.predict(name, {"do": "lines", "count": 5000}).text == "printed"
    worker = wait_until(
        lambda: next((w for w in server.describe(name)["workers"] if w["memoryUsage"] > 1 << 20), None),
        "its size is told",
    )
    node = worker["node"]["name"]
    assert worker["pid"] in {each.pid for each in server.workers()}
    assert worker["status"] == "READY"
    source = f"W-{worker['id']}-obey_1.0@{node}"
    log = server.home.log("model_log.log")
    assert f"{source}-stdout" in log, log[:1000]
    assert f"{source}-stderr" in log
    assert len(log) < 4 << 20
    assert server.metric("modelserver_node_workers", model_name=name, node=node) == 1
    assert server.metric("modelserver_node_worker_memory_bytes", model_name=name, node=node) > 1 << 20
    assert server.predict(name, {}).status_code == 200


def test_requests_of_every_kind(server, model, tmp_path):
    """Failures of one row, deadlines, clients that leave, and parts of answers are as for other workers."""
    name = model("rows", batch_size=4, max_batch_delay=50)
    with ThreadPoolExecutor(4) as pool:
        rows = [{"value": 1}, {"raise": "no"}, {"value": 3}, {"value": 4}]
        codes = [each.status_code for each in pool.map(lambda row: server.predict(name, row), rows)]
    assert codes == [200, 503, 200, 200]
    late = server.predict(name, {"wait": 1, "value": 1}, headers={"x-request-timeout-ms": "200"})
    assert late.status_code == 504
    parts = model("parts")
    body = {"parts": ["a", "b"], "last": "c", "notes": str(tmp_path / "notes")}
    with server.inference.stream("POST", f"/predictions/{parts}", json=body) as answer:
        assert b"".join(answer.iter_raw()) == b"abc"
    gone = {"endless": 100, "notes": str(tmp_path / "gone")}
    with server.inference.stream("POST", f"/predictions/{parts}", json=gone) as answer:
        next(answer.iter_raw())
    wait_until(
        lambda: (tmp_path / "gone").exists() and "left" in (tmp_path / "gone").read_text(),
        "it stops for a client that has left",
    )


def test_scaling_and_changes(server, model):
    """To none and back; another version beside and in place; unregistered while it is placed."""
    name = model("echo", model_name="grows", initial_workers=1)
    assert server.management.put("/models/grows?min_worker=0&synchronous=true").status_code == 200
    assert server.agents("grows") == []
    refused = server.predict(name, b"x")
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert server.management.put("/models/grows?min_worker=2&synchronous=true").status_code == 200
    assert server.ready("grows") == 2
    with Load(server, "grows", clients=2) as load:
        replaced = server.management.put("/models/grows?url=witness.mar&min_worker=1&synchronous=true")
        assert replaced.status_code == 200, replaced.text
    assert set(load.statuses) == {200}
    wait_until(lambda: len(server.agents()) == 1, "the replaced ones are gone")
    leaving = threading.Thread(
        target=server.register, args=("slow_start.mar",), kwargs={"initial_workers": 3}
    )
    leaving.start()
    wait_until(lambda: len(server.agents()) > 1, "they are being placed")
    server.unregister("slow_start")
    leaving.join()
    wait_until(lambda: len(server.agents()) == 1, "nothing of it is left")


def test_a_machine_of_another_version(server, model):
    """It is refused with both versions, and the workers that are there serve on."""
    name = model("witness")
    with server.nodes_of_version("0.0.1"):
        answer = server.management.put(f"/models/{name}?min_worker=2&synchronous=true")
    assert answer.status_code == 500
    assert "has modelserver 0.0.1 and Python" in answer.json()["message"]
    assert server.predict(name, b"mark").text.startswith(f"{name}|mark|")
    server.wait_ready(name, 2)
