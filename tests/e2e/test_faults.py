"""Faults of the surroundings: clocks, disks, descriptors, crowds of clients, and long mixed work."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.raw import connect, post
from tests.e2e.serving import ROOT, connections_of, wait_until

from modelserver.tools.archiver import ArchiveConfig, build_archive

MODEL_CODE = Path(__file__).parent / "model_code"

# What two readings of the same process may differ by: log files, a connection that is about to close.
SLACK = 4


@pytest.fixture
def descriptors():
    """Raises this process's soft limit of open files for a test; gives the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_000 if hard == resource.RLIM_INFINITY else min(hard, 10_000)
    allowed = wanted if soft == resource.RLIM_INFINITY else max(soft, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    yield allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def quiet(server, name):
    """Whether nothing of a model waits or runs."""
    return (
        server.metric("modelserver_queue_requests", model_name=name) == 0
        and server.metric("modelserver_batches_in_flight", model_name=name) == 0
    )


# Clocks


def test_clock_that_jumps(start_server, tmp_path, pool):
    """Setting the clock an hour forth or back while requests wait makes none of them expire (F35)."""
    offset = tmp_path / "offset"
    offset.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "real = time.time\n"
        f"time.time = lambda: real() + float(open({str(offset)!r}).read() or 0)\n"
    )
    path = os.pathsep.join(map(str, (tmp_path, ROOT / "app", ROOT / "handlers")))
    server = start_server(environment={"PYTHONPATH": path}).registered(
        "obey.mar", batch_size=2, max_batch_delay=600, response_timeout=60
    )

    for hours in (1, -1):
        # One batch runs, one request waits in its window.
        running = [pool.submit(server.predict, "obey", {"do": "sleep", "seconds": 0.5}) for _ in range(2)]
        wait_until(lambda: server.metric("modelserver_batches_in_flight") == 1, "a batch runs")
        waiting = pool.submit(
            server.predict, "obey", {"do": "nothing"}, headers={"x-request-timeout-ms": "30000"}
        )
        server.wait_pending("obey", 1)
        offset.write_text(str(hours * 3600))
        answers = [future.result(30) for future in (*running, waiting)]

        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert float(answers[2].headers["server-timing"].partition("dur=")[2].partition(",")[0]) < 30_000
    assert len(server.workers()) == 1
    assert server.metric("modelserver_expired_total") == 0


# Crowds


def test_thousands_of_idle_connections(server, descriptors):
    """While thousands of connections say nothing, requests on others and on these are served (F38)."""
    server.registered("echo.mar")
    process = psutil.Process(server.pid)
    before = process.num_fds()
    count = min(5000, descriptors - 500)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(server.port)) for _ in range(count)]
        assert server.predict("echo", b"x").content == b"x"
        for connection in idle[:: count // 10]:
            connection.sendall(post("/predictions/echo", b"woken"))
            assert connection.recv(65536).endswith(b"woken")
    wait_until(lambda: process.num_fds() <= before + SLACK, "their descriptors are given back")

    assert count >= 2000 or descriptors < 2500


def test_descriptors_run_out(server):
    """Without descriptors new connections are closed, old ones served, and nothing is lost for good (F38)."""
    server.registered("echo.mar").predict("echo", b"on a connection that is kept")
    process = psutil.Process(server.pid)
    ping = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        server.limited(resource.RLIMIT_NOFILE, process.num_fds() + 20),
        contextlib.ExitStack() as stack,
    ):
        answered = 0
        for _ in range(60):
            connection = stack.enter_context(connect(server.port))
            with contextlib.suppress(ConnectionError):
                connection.sendall(ping)
                answered += connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert answered <= 20 + SLACK
        assert server.predict("echo", b"x").content == b"x"
        # Registering needs descriptors: it fails with its reason, and takes nothing along.
        failed = server.register("obey.mar", model_name="unlucky")
        assert failed.status_code in {500, 507}
        assert "Too many open files" in failed.json()["message"]
    server.registered("obey.mar", model_name="unlucky")

    assert server.predict("unlucky", {}).status_code == 200


class Client(threading.Thread):
    """Asks again and again until it is told to stop; who is refused waits a little and connects again."""

    def __init__(self, server, name, stop):
        super().__init__()
        self.server, self.path, self.stop = server, f"/predictions/{name}", stop
        self.statuses = []
        self.start()

    def run(self):
        connection = connect(self.server.port)
        while not self.stop.is_set():
            connection.sendall(post(self.path, b'{"do": "sleep", "seconds": 0.05}'))
            status = int(connection.recv(65536)[9:12])
            self.statuses.append(status)
            if status != 200:
                connection.close()
                self.stop.wait(0.1)
                connection = connect(self.server.port)
        connection.close()


def ask_for(server, name, clients, answers):
    """Lets clients ask until so many answers have come; gives all statuses, and answers per second."""
    stop = threading.Event()
    threads = [Client(server, name, stop) for _ in range(clients)]

    def served():
        return sum(thread.statuses.count(200) for thread in threads)

    wait_until(lambda: served() >= 10, "the load is on")
    first, started = served(), time.monotonic()
    wait_until(lambda: served() >= first + answers, "the answers come")
    rate = (served() - first) / (time.monotonic() - started)
    stop.set()
    for thread in threads:
        thread.join()
    return [status for thread in threads for status in thread.statuses], rate


@pytest.mark.slow
def test_ten_times_the_load(start_server):
    """Ten times the load that fills the worker costs the answers nothing: what is too much is refused, the
    queue and memory stay bounded, and afterwards all is as before (F32).
    """
    server = start_server(job_queue_size=4).registered("obey.mar")
    process = psutil.Process(server.pid)
    _, peak = ask_for(server, "obey", 4, 40)
    before = process.memory_info().rss
    statuses, rate = ask_for(server, "obey", 40, 60)

    assert set(statuses) == {200, 503}
    assert statuses.count(503) > statuses.count(200)
    assert rate >= 0.9 * peak
    wait_until(lambda: quiet(server, "obey"), "nothing is left", 5)
    assert process.memory_info().rss - before < 50 << 20
    assert server.predict("obey", {}).status_code == 200


# Disks


def test_disk_that_is_full(start_server, tmp_path):
    """An archive that cannot be unpacked is refused with the reason and leaves nothing. What is loaded goes
    on, and once there is room it can be registered (F56).
    """
    weights = tmp_path / "weights.bin"
    weights.write_bytes(os.urandom(1 << 20))
    store = tmp_path / "store"
    store.mkdir()
    for name, extra in (("echo", None), ("no_weights", str(weights))):
        code = str(MODEL_CODE / f"{name}.py")
        build_archive(ArchiveConfig(name, code, "1.0", extra_files=extra, export_path=store))
    server = start_server(model_store=store).registered("echo.mar")
    [workdir] = server.home.workdirs()
    before = sorted(workdir.iterdir())

    with server.limited(resource.RLIMIT_FSIZE, 1 << 19):
        refused = server.register("no_weights.mar")
        assert refused.status_code in {500, 507}
        assert "File too large" in refused.json()["message"]
        assert sorted(workdir.iterdir()) == before
        assert server.predict("echo", b"x").content == b"x"
    server.registered("no_weights.mar")

    assert server.predict("no_weights", b"").text == str(1 << 20)


def test_work_directory_that_is_swept_away(start_server):
    """If the temporary directory is emptied under the server, what is loaded is served, and more can be
    (F56).
    """
    server = start_server().registered("echo.mar")
    [workdir] = server.home.workdirs()
    shutil.rmtree(workdir)

    assert server.predict("echo", b"x").content == b"x"
    assert server.registered("obey.mar").predict("obey", {}).status_code == 200


def test_model_store_that_goes_away(start_server, tmp_path, model_store):
    """Without its model store a server serves what it has loaded and says what it cannot find (F56)."""
    store = tmp_path / "store"
    store.mkdir()
    shutil.copy(model_store / "echo.mar", store)
    server = start_server(model_store=store).registered("echo.mar")
    shutil.rmtree(store)
    refused = server.register("obey.mar")

    assert (refused.status_code, refused.json()["message"]) == (404, "Model not found at: obey.mar")
    assert server.predict("echo", b"x").content == b"x"


# Models


def test_broken_version_beside_a_good_one(server, tmp_path, model_store):
    """A new version that cannot load is refused with the cause; the old one stays the default (F52)."""
    code = tmp_path / "broken.py"
    code.write_text("def handle(data, context):\n    raise RuntimeError('no such layer')\n")
    broken = build_archive(ArchiveConfig("echo", str(code), "9.0", export_path=tmp_path))
    shutil.copy(broken, model_store / "echo-v9.mar")
    server.registered("echo.mar")
    refused = server.register("echo-v9.mar", startup_timeout=20)
    versions = server.management.get("/models/echo/all").json()

    assert refused.status_code == 500
    assert "no such layer" in refused.json()["message"]
    assert [version["modelVersion"] for version in versions] == ["1.0"]
    assert server.predict("echo", b"x").content == b"x"
    assert server.inference.get("/ping").status_code == 200


# Of models at one start: with more than these, a busy machine with two processors takes minutes.
MANY = 200 if os.environ.get("MODELSERVER_LONG_TESTS") else 40


@pytest.mark.timeout(60 + 3 * MANY)
@pytest.mark.parametrize("count", [8, pytest.param(MANY, marks=pytest.mark.slow)])
def test_one_of_many_hangs_at_the_start(start_server, count):
    """Models load at most eight at a time, and one that hangs keeps neither the server nor others from
    starting (F57).
    """
    names = [f"m{number}" for number in range(count)]
    others = ",".join(f"{name}=echo.mar" for name in names)
    server = start_server(
        environment={"E2E_LOAD_SECONDS": "600"},
        load_models=f"hanging=slow_start.mar,{others}",
        default_workers_per_model=1,
    )
    most, ready = 0, set()
    while len(ready) < count:
        alive = len(server.workers())
        waiting = [name for name in names if name not in ready]
        ready |= {name for name in waiting if server.describe(name)["workers"][0]["status"] == "READY"}
        # Those that were ready before are among them.
        most = max(most, alive - len(ready))

    assert most <= 8
    assert [server.predict(name, b"x").content for name in names] == [b"x"] * count
    assert server.describe("hanging")["workers"][0]["status"] == "LOADING"
    assert server.inference.get("/ping").status_code == 200


# Processes


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_handler_with_processes_of_its_own(server, method):
    """A handler may compute in processes that it forks or spawns itself, and terminate them (F47)."""
    server.registered("children.mar")
    answer = server.predict("children", {"method": method, "numbers": [1, 2, 3]})

    assert answer.json()["squares"] == [1, 4, 9]
    assert answer.json()["ended"] == -signal.SIGTERM
    server.unregister("children")
    wait_until(lambda: not server.workers(), "they end with their worker")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_workers_are_no_copies_of_the_server(server):
    """A worker is a fresh process: it has its own channel and the memory for large bodies, no more (F47)."""
    server.registered("echo.mar")
    [worker] = server.workers()
    ours = {os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.pid}/fd")}
    theirs = [os.readlink(f"/proc/{worker.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{worker.pid}/fd")]

    assert connections_of(worker, "inet") == []
    assert len({name for name in theirs if name.startswith("socket:")}) == 1
    shared = {name for name in theirs if name in ours and not name.startswith(("pipe:", "/dev/"))}
    assert shared == {"/memfd:modelserver (deleted)"}


# Long work


def leave_rudely(server):
    """Clients that break off: in a head, in a body, after a request, with a reset instead of a farewell."""
    whole = post("/predictions/obey", b'{"do": "sleep", "seconds": 0.02}')
    for piece in (
        b"",
        b"POST /pre",
        whole[:60],
        whole[:-5],
        whole,
        whole + b"GARBAGE\r\n\r\n",
        b"\x00" * 100,
    ):
        with connect(server.port) as connection:
            connection.sendall(piece)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def four_rounds(server, pool):
    """Good requests, bad ones and crashed clients, a worker that dies, and a model that comes and goes."""
    for _ in range(4):
        mixed_requests(server, pool)
    server.predict("obey", {"do": "exit"})
    server.registered("echo.mar", model_name="passing").unregister("passing")
    assert server.predict("obey", {}).status_code == 200


def mixed_requests(server, pool):
    """What comes at the same time."""
    rude = [pool.submit(leave_rudely, server) for _ in range(3)]
    good = [pool.submit(server.predict, "obey", {"do": "sleep", "seconds": 0.002}) for _ in range(20)]
    bad = [pool.submit(server.v1, "obey", instances) for instances in ([], "x", [{"do": "raise"}])]
    for future in rude:
        future.result(30)
    assert {future.result(30).status_code for future in good} == {200}
    assert {future.result(30).status_code for future in bad} <= {200, 400, 500}


@pytest.mark.slow
def test_soak(start_server, pool):
    """Mixed work with crashing clients and workers leaves as many descriptors, threads and processes as there
    were, and hardly more memory (F71, in small).
    """
    server = start_server().registered("obey.mar", batch_size=4)
    process = psutil.Process(server.pid)

    def calm():
        connected = any(
            each.raddr and each.laddr.port == server.port for each in connections_of(process, "tcp4")
        )
        return not connected and quiet(server, "obey") and len(server.workers()) == 1

    four_rounds(server, pool)
    server.hang_up()
    wait_until(calm, "the first rounds end")
    descriptors, threads, memory = process.num_fds(), process.num_threads(), process.memory_info().rss
    for _ in range(5):
        four_rounds(server, pool)
    server.hang_up()
    wait_until(calm, "all rounds end")

    wait_until(lambda: process.num_fds() <= descriptors + SLACK, "descriptors are as before")
    assert process.num_threads() <= threads + SLACK
    assert process.memory_info().rss - memory < 20 << 20
    assert server.metric("modelserver_queue_requests") == 0


def test_hundreds_of_registrations(start_server):
    """Registering and unregistering hundreds of times leaves no files, descriptors or memory behind (F72)."""
    server = start_server()
    process = psutil.Process(server.pid)
    [workdir] = server.home.workdirs()

    def cycle(times):
        for _ in range(times):
            server.registered("echo.mar", initial_workers=0).unregister("echo")

    cycle(50)
    descriptors, memory = process.num_fds(), process.memory_info().rss
    cycle(150)

    assert list(workdir.iterdir()) == []
    assert process.num_fds() <= descriptors + SLACK
    assert process.memory_info().rss <= memory * 1.05
