"""Faults of the surroundings: clocks, disks, crowds of clients, clients that leave, changes at once.

Of the faults that are not shown to the letter, this is why:

* F15, slow heads and bodies: clients are given 60 s. Tests of the protocol have a clock of their own; against
  a running server ``python -m tests.campaign wire`` waits for it.
* F16, unknown verbs: what the parser knows is 405 with ``Allow``; other words are no HTTP to it, hence 400.
* F30, 503 within 10 ms: what is bounded is the processor time of a refusal, as a busy machine delays answers.
* F32, ten times the load for 60 s: ``test_overload.py`` ends after some answers of a steady state; what is
  bounded there does not depend on the time.
* F35, clock jumps: a test cannot set the machine's clock. It sets what Python tells of it.
* F43, smaller batches after want of memory: not offered; the batch is answered 507 and the handler is not
  driven into it again. A kill by a cgroup is told by the system's counter, which the test moves.
* F44, a gigabyte of output: ``test_printing_handlers.py`` prints without end for a few seconds.
* F49, readiness 503 before the queue is drained: the listening sockets are closed at once, so that a probe is
  refused; there is no connection left to answer 503 on.
* F51, 60 s: as long as a hundred changes take; 60 s with ``MODELSERVER_LONG_TESTS=1``.
* F57, 200 models: 12, which show that eight load at a time; 200 with ``MODELSERVER_LONG_TESTS=1``.
* F61, ``--require-safetensors``: not offered. Pickles are loaded with ``weights_only`` and refused otherwise.
* F62, remote URLs off by default, sums of archives: public hosts are allowed on purpose, as in TorchServe,
  and archives carry no sums.
* F70, ten minutes of schemathesis: ``test_openapi_conformance.py`` is bounded by examples, not by time.
* F5, F38, F56, F71, F72: ``tests/campaign`` (wire, system, soak, leaks) shows them, in a short form among
  the slow tests and for as long as one likes. What grew with registrations has tests of its own:
  ``test_server.py`` (heaps of threads), ``test_files.py``.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from dataclasses import dataclass

import psutil
import pytest
from tests.e2e.raw import connect, post
from tests.e2e.serving import ROOT, archived, connections_of, copied, wait_until

# Two readings of the same process may differ by log files and a connection that is about to close.
SLACK = 4
LONG = os.environ.get("MODELSERVER_LONG_TESTS")
JSON = "Content-Type: application/json"


def cpu(process):
    times = process.cpu_times()
    return times.user + times.system


def wait_quiet(server, name):
    for metric in ("modelserver_queue_requests", "modelserver_batches_in_flight"):
        wait_until(lambda metric=metric: server.metric(metric, model_name=name) == 0, f"no {metric}")


@pytest.mark.slow  # a server with a clock of its own, from nothing
def test_clock_that_jumps_expires_nothing(start_server, tmp_path, pool):
    offset = tmp_path / "offset"
    offset.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "real = time.time\n"
        f"time.time = lambda: real() + float(open({str(offset)!r}).read() or 0)\n"
    )
    path = os.pathsep.join(map(str, (tmp_path, ROOT / "app", ROOT / "handlers")))
    server = start_server(environment={"PYTHONPATH": path}).registered(
        "obey.mar", batch_size=2, max_batch_delay=400, response_timeout=60
    )

    for number, hours in enumerate((1, -1), 1):
        # One batch runs, one request waits in its window.
        with server.occupied(pool, "obey", tmp_path / f"over{hours}") as running:
            waiting = pool.submit(server.predict, "obey", {}, headers={"x-request-timeout-ms": "30000"})
            server.wait_arrived("obey", 2 * number)
            offset.write_text(str(hours * 3600))
        responses = [future.result(30) for future in (running, waiting)]

        assert [response.status_code for response in responses] == [200, 200]
        assert float(responses[1].headers["server-timing"].partition("dur=")[2].partition(",")[0]) < 30_000
    assert len(server.workers()) == 1
    assert server.metric("modelserver_expired_total") == 0


@pytest.fixture
def descriptors():
    """Raises this process's soft limit of open files for a test; gives the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wish = 3_000 if hard == resource.RLIM_INFINITY else min(hard, 3_000)
    allowed = wish if soft == resource.RLIM_INFINITY else max(soft, wish)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    yield allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_idle_connections_hold_up_nobody(server, descriptors):
    """While two thousand connections say nothing, requests on others and on these are served (F38)."""
    server.registered("echo.mar")
    process = psutil.Process(server.pid)
    before = process.num_fds()
    count = min(2000, descriptors - 500)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(server.port)) for _ in range(count)]
        assert server.predict("echo", b"x").content == b"x"
        for connection in idle[:: count // 10]:
            connection.sendall(post("/predictions/echo", b"woken"))
            assert connection.recv(65536).endswith(b"woken")
    wait_until(lambda: process.num_fds() <= before + SLACK, "their descriptors are given back")

    assert count >= 2000 or descriptors < 2500


@pytest.mark.slow  # looks at processes that do nothing for some seconds
def test_idle_server_needs_no_processor(start_server):
    """With models and idle connections server and workers need less than 1 % of a processor (F29)."""
    server = start_server().registered("echo.mar", initial_workers=2, batch_size=8).registered("obey.mar")
    assert server.predict("echo", b"x").content == b"x"
    time.sleep(1)
    processes = [psutil.Process(server.pid), *server.workers()]
    before = [cpu(process) for process in processes]
    time.sleep(6)

    assert max(cpu(process) - spent for process, spent in zip(processes, before, strict=True)) < 0.06


@pytest.mark.parametrize("when", ["forming", "running", "returning"])
def test_clients_that_leave_cost_their_batch_nothing(server, pool, tmp_path, when):
    """Of four requests that share a batch, two are left by their clients, while it forms, runs or is
    answered: the other clients receive their own, nothing is left, and what never ran is not computed (F24,
    F37).
    """
    server.registered("obey.mar", batch_size=4, batch_policy="window", max_batch_delay=20_000)
    big, over = {"do": "big", "bytes": 6_000_000}, tmp_path / "over"
    orders = [
        big if when == "returning" else {"do": "wait", "file": str(over), "token": number}
        for number in range(4)
    ]
    with contextlib.ExitStack() as stack:
        leavers = [stack.enter_context(connect(server.port, small=True)) for _ in range(2)]
        for leaver, order in zip(leavers, orders, strict=False):
            leaver.sendall(post("/predictions/obey", json.dumps(order).encode(), JSON))
        server.wait_pending("obey", 2)
        if when != "forming":
            staying = [pool.submit(server.predict, "obey", order) for order in orders[2:]]
        if when == "running":
            server.wait_busy("obey")
        elif when == "returning":
            # The rest of each is more than the system keeps.
            assert all(leaver.recv(100).startswith(b"HTTP/1.1 200 ") for leaver in leavers)
    left = 0 if when == "returning" else 2
    wait_until(lambda: server.metric("modelserver_cancelled_total", model_name="obey") == left, "left")
    over.touch()
    if when == "forming":
        server.wait_pending("obey", 0)
        staying = [pool.submit(server.predict, "obey", order) for order in orders]
    responses = [future.result(30) for future in staying]

    assert {(each.status_code, each.headers["x-batch-size"]) for each in responses} == {(200, "4")}
    if when == "returning":
        assert [len(response.content) for response in responses] == [6_000_000] * 2
    else:
        tokens = [response.json()["token"] for response in responses]
        assert tokens == list(range(4))[-len(responses) :]
    wait_quiet(server, "obey")
    assert server.metric("modelserver_cancelled_total", model_name="obey") == left
    assert server.metric("modelserver_batch_size_count", model_name="obey") == 1
    assert server.metric("modelserver_batch_size_sum", model_name="obey") == 4


def test_server_without_its_folders_serves_what_it_has(start_server, tmp_path, model_store):
    """If the temporary directory is emptied under the server, what is loaded is served, and more can be; so
    is it without the model store, of which the server says what it cannot find (F56).
    """
    store = copied(tmp_path / "store", model_store, "echo", "obey")
    server = start_server(model_store=store).registered("echo.mar")
    [workdir] = server.home.workdirs()
    shutil.rmtree(workdir)
    assert server.predict("echo", b"x").content == b"x"
    assert server.registered("obey.mar").predict("obey", {}).status_code == 200
    shutil.rmtree(store)
    refused = server.register("obey.mar", model_name="late")

    assert (refused.status_code, refused.json()["message"]) == (404, "Model not found at: obey.mar")
    assert server.predict("echo", b"x").content == b"x"


COUNT = 200 if LONG else 12


@pytest.mark.timeout(60 + 3 * COUNT)
def test_one_of_many_that_hangs_keeps_none_from_starting(start_server, tmp_path, model_store):
    """Models load at most eight at a time. One that hangs keeps neither the server nor others from starting,
    and one that cannot load is listed as failed with the cause (F55, F57).
    """
    store = copied(tmp_path / "store", model_store, "echo", "missing_module")
    archived(store, "hanging", "import time\n\ntime.sleep(600)\n")
    names = [f"m{number}" for number in range(COUNT)]
    others = ",".join(f"{name}=echo.mar" for name in names)
    server = start_server(
        model_store=store, load_models=f"hanging.mar,missing_module.mar,{others}", default_workers_per_model=1
    )
    most, ready = 0, set[str]()
    while len(ready) < COUNT:
        alive = len(server.workers())
        waiting = [name for name in names if name not in ready]
        ready |= {name for name in waiting if server.describe(name)["workers"][0]["status"] == "READY"}
        # Workers that were ready before are among those alive.
        most = max(most, alive - len(ready))
    failed = wait_until(
        lambda: [w for w in server.describe("missing_module")["workers"] if w["status"] == "FAILED"], "failed"
    )

    assert most <= 8
    assert [server.predict(name, b"x").content for name in names] == [b"x"] * COUNT
    assert server.describe("hanging")["workers"][0]["status"] == "LOADING"
    assert "surely_not_installed" in failed[0]["failure"]
    assert server.inference.get("/ping").status_code == 500
    server.unregister("missing_module")
    assert server.inference.get("/ping").status_code == 200


@dataclass(frozen=True)
class Change:
    """An accepted change: when it was sent and answered, and its number of workers; None: no model."""

    sent: float
    answered: float
    workers: int | None


@pytest.mark.slow  # as long as a hundred changes take
def test_last_change_counts(server, pool):
    """Twenty clients register, scale and remove one model at random: what was accepted last holds (F51)."""
    shortest = time.monotonic() + (60 if LONG else 0)
    accepted = []

    def change(client):
        chance = random.Random(client)
        while len(accepted) < 100 or time.monotonic() < shortest:
            kind, sent = chance.randrange(3), time.monotonic()
            workers = chance.randrange(3)
            if kind == 0:
                response = server.register("echo.mar", model_name="contested", initial_workers=workers)
            elif kind == 1:
                response = server.management.put(f"/models/contested?min_worker={workers}")
            else:
                response, workers = server.management.delete("/models/contested"), None
            if response.status_code == 500 and kind == 0:
                # Another client took the workers away that it waited for: the model is gone with them.
                workers = None
            else:
                # 206: registered, but the workers that it waited for were scaled away.
                assert response.status_code in (200, 202, 206, 404, 409), response.text
            if response.status_code in (200, 202, 206, 500):
                accepted.append(Change(sent, time.monotonic(), workers))

    list(pool.map(change, range(20)))
    # Any change that was sent before the last of them was answered may be the last one.
    latest = max(each.sent for each in accepted)
    possible = {each.workers for each in accepted if each.answered >= latest}
    described = server.management.get("/models/contested")
    workers = described.json()[0]["minWorkers"] if described.status_code == 200 else None

    assert workers in possible
    wait_until(lambda: len(server.workers()) == (workers or 0), "there are as many workers as it says")
    if workers is None:
        server.registered("echo.mar", model_name="contested")
    elif not workers:
        assert server.management.put("/models/contested?min_worker=1&synchronous=true").status_code == 200
    assert server.predict("contested", b"x").content == b"x"


def test_handler_may_have_processes_of_its_own(server):
    """A handler may compute in processes that it forks or spawns itself, and terminate them (F47)."""
    server.registered("children.mar")
    for method in ("fork", "forkserver", "spawn"):
        response = server.predict("children", {"method": method, "numbers": [1, 2, 3]})

        assert response.json()["squares"] == [1, 4, 9]
        assert response.json()["ended"] == -signal.SIGTERM
    server.unregister("children")
    wait_until(lambda: not server.workers(), "they end with their worker")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_workers_are_no_copies_of_the_server(server):
    """A worker is a fresh process: it has its own channel and the memory for large bodies, no more (F47)."""
    server.registered("echo.mar")
    [worker] = server.workers()
    ours = {os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.pid}/fd")}
    its = [os.readlink(f"/proc/{worker.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{worker.pid}/fd")]

    assert connections_of(worker, "inet") == []
    assert len({name for name in its if name.startswith("socket:")}) == 1
    shared = {name for name in its if name in ours and not name.startswith(("pipe:", "/dev/"))}
    assert shared == {"/memfd:modelserver (deleted)"}
