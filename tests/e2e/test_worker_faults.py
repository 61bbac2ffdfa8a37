"""Workers that die, hang, cannot start, or grow (faults 39 to 48)."""

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.e2e.load import Load
from tests.e2e.serving import Home, Server, archived, serving, wait_until, worker_processes


@pytest.fixture
def obey(shared_server):
    """A fresh model with one worker, whatever the test before did to it."""
    shared_server.registered("obey.mar")
    yield shared_server
    shared_server.unregister("obey")


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"do": "signal", "name": "SIGKILL"}, "was killed by SIGKILL"),
        ({"do": "signal", "name": "SIGSEGV"}, "was killed by SIGSEGV"),
        ({"do": "exit", "code": 3}, "exited with status 3"),
        ({"do": "leave", "name": "SystemExit"}, "exited with status 4"),
        ({"do": "leave", "name": "KeyboardInterrupt"}, "was killed by SIGINT"),
        ({"do": "leave", "name": "GeneratorExit"}, "exited with status"),
    ],
    ids=["SIGKILL", "SIGSEGV", "os._exit", "sys.exit", "KeyboardInterrupt", "GeneratorExit"],
)
def test_worker_that_dies_costs_one_request(obey, order, reason):
    """A clear error, the reason in describe, another process under the same id (reference 18.4, F39, F45)."""
    before = obey.describe("obey")["workers"][0]
    response = obey.predict("obey", order)

    assert (response.status_code, response.json()["message"]) == (500, "Worker died.")
    failure = wait_until(lambda: obey.describe("obey")["workers"][0].get("failure"), "the reason is known")
    assert failure.startswith(f"The worker {reason}")
    assert obey.inference.get("/ping").status_code == 200
    assert obey.predict("obey", {}).status_code == 200
    after = obey.describe("obey")["workers"][0]
    assert "failure" not in after
    assert before["id"] == after["id"]
    assert before["pid"] != after["pid"] == obey.workers()[0].pid


def test_worker_may_ask_for_another_process(shared_server, model_store):
    """The model is loaded in one with the variables that it needs; the registration waits for that."""
    source = """
        import os
        from modelserver_handlers.errors import LoadAgain

        class Handler:
            def initialize(self, context):
                self.reason = os.environ.get("WITHOUT")
                if self.reason is None:
                    raise LoadAgain("this process cannot go on", {"WITHOUT": "graphs"})

            def handle(self, data, context):
                return [self.reason] * len(data)
    """
    archived(model_store, "again", source)
    shared_server.registered("again.mar", synchronous=True)

    assert shared_server.predict("again", {}).text == "graphs"
    assert "failedLoads" not in shared_server.describe("again")["workers"][0]
    shared_server.unregister("again")


def test_idle_worker_that_is_killed_costs_nothing(obey):
    """What was sent to it and never begun, and what comes meanwhile, is served by its successor; a V1 request
    that kills its worker receives the error under ``error`` (F39).
    """
    os.kill(obey.describe("obey")["workers"][0]["pid"], signal.SIGKILL)
    assert obey.predict("obey", {}).status_code == 200
    obey.workers()[0].kill()
    wait_until(lambda: obey.describe("obey")["workers"][0]["status"] != "READY", "its end is noticed")
    assert obey.predict("obey", {}).status_code == 200
    died = obey.v1("obey", [{"do": "exit"}])

    assert (died.status_code, died.json()["error"]) == (500, "Worker died.")


def test_descriptions_need_no_descriptors(obey):
    """A server that can open nothing more says what it knows of its models (F38)."""
    whole = obey.describe("obey")
    process = psutil.Process(obey.pid)
    limits = process.rlimit(psutil.RLIMIT_NOFILE)
    # The connection is there from before.
    process.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
    try:
        described = obey.describe("obey")
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, limits)

    assert whole["workers"][0]["memoryUsage"] > 0
    assert described["workers"][0] == {**whole["workers"][0], "memoryUsage": 0}
    assert "Traceback" not in obey.home.log()


def have_ended(processes):
    """Whether none runs; whoever inherits them need not have looked yet."""
    ended = True
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            ended = ended and process.status() == psutil.STATUS_ZOMBIE
    return ended


def orphans_of(server, name, count):
    """Processes that a handler forked, which left its session and its family and mind no signal."""
    pids = server.predict(name, {"do": "orphans", "count": count}).json()["pids"]
    assert len(set(pids)) == count
    assert {os.getsid(pid) for pid in pids}.isdisjoint({worker.pid for worker in server.workers()})
    return [psutil.Process(pid) for pid in pids]


def test_orphans_end_with_their_worker(shared_server):
    """Fifty are gone when it has died or was stopped; those of another worker are not touched (F45)."""
    for name in ("leaving", "staying"):
        shared_server.registered("obey.mar", model_name=name)
    orphans, others = orphans_of(shared_server, "leaving", 50), orphans_of(shared_server, "staying", 5)
    program = psutil.Process(shared_server.predict("leaving", {"do": "daemon"}).json()["pid"])
    assert not any(have_ended([process]) for process in (*orphans, program))
    shared_server.predict("leaving", {"do": "exit"})

    wait_until(lambda: have_ended([*orphans, program]), "they end")
    assert not any(have_ended([process]) for process in others)
    shared_server.unregister("leaving")
    shared_server.unregister("staying")
    wait_until(lambda: have_ended(others), "the others end with theirs")


def test_worker_that_does_not_answer_is_replaced(shared_server, pool):
    """After the response timeout its request receives a 500 (V1: 504), and the process is gone; one that is
    stopped by a signal counts as one that does not answer (F39).
    """
    names = ("slow", "slow-v1", "stopped")
    list(pool.map(lambda n: shared_server.registered("obey.mar", model_name=n, response_timeout=1), names))
    before = {name: shared_server.describe(name)["workers"][0]["pid"] for name in names}
    os.kill(before["stopped"], signal.SIGSTOP)
    order = {"do": "sleep", "seconds": 30}
    futures = [
        pool.submit(shared_server.predict, "slow", order),
        pool.submit(shared_server.v1, "slow-v1", [order]),
        pool.submit(shared_server.predict, "stopped", {}),
    ]
    slow, by_v1, stopped = (future.result(20) for future in futures)

    assert (slow.status_code, slow.json()["message"]) == (500, "Worker died.")
    assert slow.elapsed.total_seconds() > 0.9
    assert (by_v1.status_code, stopped.status_code) == (504, 500)
    for name in names:
        # Their successors may be slow once more.
        answer = wait_until(lambda name=name: shared_server.predict(name, {}).json().get("pid"), "it serves")
        assert answer != before[name]
        wait_until(lambda name=name: not psutil.pid_exists(before[name]), "the hung process is gone")
        shared_server.unregister(name)


def test_loading_has_a_timeout_of_its_own(shared_server, model_store, pool):
    """It may exceed the response timeout (F42); past its own it fails with that and the last output (F40)."""
    source = """
        import time

        def handle(data, context):
            if data is None:
                print("loading slowly", flush=True)
                time.sleep(1.5)
                return None
            return ["loaded"] * len(data)
        """
    archived(model_store, "sleepy", source)
    loading = pool.submit(shared_server.register, "sleepy.mar", model_name="patient", response_timeout=1)

    def load_slowly():
        """The answer, once the process has come so far in its time as to print."""
        answer = shared_server.register("sleepy.mar", startup_timeout=1)
        assert answer.status_code == 500
        assert "startup_timeout=1 s" in answer.json()["message"]
        return "loading slowly" in answer.json()["message"]

    wait_until(load_slowly, "its last output is there")
    assert loading.result().status_code == 200
    wait_until(lambda: shared_server.predict("patient").text == "loaded", "it serves")
    shared_server.unregister("patient")


@pytest.mark.slow  # pauses of one and two seconds between tries
def test_model_whose_load_keeps_failing_is_refused_at_once(shared_server, model_store, tmp_path):
    """Loading is tried again with growing pauses. After the third failure in a row requests are refused,
    those that wait too, with the reason; a load that succeeds ends that (F40, F41).
    """
    marks, ready = tmp_path / "tries", tmp_path / "ready"
    source = f"""
        from pathlib import Path

        def handle(data, context):
            if data is None:
                if not Path({str(ready)!r}).exists():
                    Path({str(marks)!r}).open('a').write('x')
                    raise RuntimeError('the licence server is down')
                return None
            return ['served'] * len(data)
        """
    archived(model_store, "moody", source)
    assert shared_server.register("moody.mar", synchronous="false").status_code == 202

    refused = shared_server.predict("moody")
    assert refused.status_code == 503
    assert refused.json()["message"].startswith('Model "moody" has no worker to serve inference request.')
    assert "Its workers fail: RuntimeError: the licence server is down" in refused.json()["message"]
    assert len(marks.read_text()) == 3
    shared_server.home.wait_for_log("Retry worker")
    ready.touch()
    assert wait_until(lambda: shared_server.predict("moody").text == "served", "it is loaded at last")
    shared_server.unregister("moody")


@pytest.mark.slow  # waits for two timeouts of a second and more
def test_silent_and_stubborn_workers_are_ended(start_server):
    """An idle worker without a sign of life for ``silence_timeout`` seconds is replaced (F39), one that is
    busy for longer than ``unregister_model_timeout`` when its model is removed is ended (F50).
    """
    server = start_server(silence_timeout="1.5", unregister_model_timeout=1).registered("obey.mar")
    stopped = server.describe("obey")["workers"][0]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: server.describe("obey")["workers"][0]["pid"] not in {stopped, 0, None}, "a successor")
    server.home.wait_for_log("was silent for 1.5 s while idle")
    assert server.predict("obey", {}).json()["pid"] != stopped
    with ThreadPoolExecutor(1) as executor:
        busy = executor.submit(server.predict, "obey", {"do": "sleep", "seconds": 60})
        server.wait_busy("obey")
        server.unregister("obey")
        response = busy.result(20)

    assert response.status_code in {500, 503}
    assert response.json()["message"]
    assert server.workers() == []


def test_killed_server_leaves_nothing(tmp_path, model_store):
    """Its workers end within 5 s; the next start sweeps up its files and its handlers' processes (F48)."""
    home = Home(tmp_path)
    server = Server(
        home, model_store, settings={"load_models": "obey.mar", "default_workers_per_model": 2}
    ).start()
    try:
        server.wait_ready("obey", 2)
        pid = server.pid
        program = psutil.Process(server.predict("obey", {"do": "daemon"}).json()["pid"])
        # One of them hangs in user code: it must end all the same.
        with ThreadPoolExecutor(1) as executor:
            hanging = executor.submit(server.predict, "obey", {"do": "sleep", "seconds": 60})
            server.wait_busy("obey")
            server.process.kill()
            assert isinstance(hanging.exception(10), Exception)
        wait_until(lambda: not worker_processes(pid), "its workers end", 5)
    finally:
        server.kill()
    [left] = home.workdirs()
    assert home.pid_file.exists()

    with serving(Server(home, model_store)) as again:
        assert "Removing orphan pid file." in home.output()
        assert left not in home.workdirs()
        assert have_ended([program])
        assert again.inference.get("/ping").status_code == 200


# Recycling (fault 46)


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("requests", {"max_worker_requests": 20}),
        # A worker needs some seconds to grow that much.
        pytest.param("memory", {"max_worker_memory": 120 << 20}, marks=pytest.mark.slow),
    ],
)
def test_workers_are_recycled_under_load(shared_server, reason, limit):
    """No request fails; the log and a metric show it. Limits are changed by scaling's call."""
    server = shared_server.registered("leaks.mar", initial_workers=2, **limit)
    before = {worker.pid for worker in server.workers()}

    def recycled():
        count = server.metric("modelserver_workers_recycled_total", model_name="leaks", reason=reason)
        return count >= 2 and not before & {worker.pid for worker in server.workers()}

    with Load(server, "leaks", 4, is_own=lambda model, mark, text: text.isdigit()) as load:
        wait_until(recycled, "workers are recycled")
    assert set(load.statuses) == {200}
    assert load.statuses[200] > 40
    assert load.wrong == []
    assert len(server.describe("leaks")["workers"]) == 2
    server.home.wait_for_log("is recycled: it has ")
    wait_until(lambda: len(server.workers()) <= 3, "the old ones leave")

    changed = server.management.put("/models/leaks?max_worker_requests=1000000")
    assert changed.json() == {"status": 'Model "leaks" changed: max_worker_requests=1000000'}
    assert server.describe("leaks")["maxWorkerRequests"] == 1_000_000
    refused = server.management.put("/models/leaks?max_worker_requests=0&max_worker_memory=-1")
    assert refused.status_code == 400
    assert "max_worker_memory=-1: a whole number of at least 0 is needed" in refused.json()["message"]
    server.unregister("leaks")
