"""Workers as if on other machines: what works with them, and what their users meet when something breaks."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.e2e.elsewhere import LOST, Load, elsewhere, freezing
from tests.e2e.serving import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """One for all tests that do not end it."""
    with elsewhere(tmp_path_factory.mktemp("c"), model_store) as one:
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


def test_killed_and_frozen_machines(server, model, record_property):
    """Agents and workers that are killed, or frozen for longer than ``worker_lost_timeout``, are replaced;
    each request gets exactly one answer, its own, and only what had begun there fails.
    """
    name = model("witness", batch_size=4, initial_workers=3)
    with Load(server, name) as load:
        server.agents(name)[0].kill()
        record_property("agent killed: noticed, replaced", server.wait_lost_and_replaced(name, 1, 3))
        server.agents(name)[1].children()[0].kill()
        record_property("worker killed: noticed, replaced", server.wait_lost_and_replaced(name, 1, 3))
        frozen = server.agents(name)[2]
        with freezing(frozen, *frozen.children()):
            noticed, replaced = server.wait_lost_and_replaced(name, 1, 3)
        record_property("frozen: noticed, replaced", (noticed, replaced))
        assert noticed > LOST / 2
        wait_until(lambda: not frozen.is_running(), "it notices that it was given up")
    record_property("answers", dict(load.statuses))
    assert load.wrong == []
    assert set(load.statuses) <= {200, 500}
    assert load.statuses[500] <= 3 * 3 * 4
    assert all("Worker died." in error for error in load.errors)


def test_a_short_pause_of_a_machine(server, model):
    """A machine that stops for less than ``worker_lost_timeout`` keeps its worker, and no request fails."""
    name = model("witness", batch_size=4, initial_workers=2)
    before = server.describe(name)["workers"]
    paused = server.agents(name)[0]
    with Load(server, name) as load:
        with freezing(paused, *paused.children()):
            time.sleep(LOST / 2)
        time.sleep(0.5)
    assert set(load.statuses) == {200}
    assert load.wrong == []
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


def test_a_network_that_stalls(server, model, record_property):
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
            record_property("stalled: noticed, replaced", server.wait_lost_and_replaced(name, 2, 3))
            proxy.resume()
            time.sleep(0.5)
            assert len(pids & {worker["pid"] for worker in server.describe(name)["workers"]}) == 1
    record_property("answers", dict(load.statuses))
    assert load.wrong == []
    assert set(load.statuses) <= {200, 500}
    assert load.statuses[500] <= 2 * 2 * 4


def test_server_that_is_killed(tmp_path, model_store, record_property):
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
        record_property("gone after", time.monotonic() - began)
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
