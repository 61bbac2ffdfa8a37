"""Workers that die, hang, cannot start, or misbehave (faults 39 to 48)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.e2e.serving import Home, Server, archived, serving, wait_until, worker_processes

from modelserver.tools.archiver import ArchiveConfig, build_archive


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
        ({"do": "sysexit"}, "exited with status 4"),
    ],
    ids=["SIGKILL", "SIGSEGV", "os._exit", "sys.exit"],
)
def test_worker_that_dies(obey, order, reason):
    """Its request gets one clear error, the reason is in describe, the next request is served (F39, F45)."""
    answer = obey.predict("obey", order)

    assert (answer.status_code, answer.json()["message"]) == (500, "Worker died.")
    failure = wait_until(lambda: obey.describe("obey")["workers"][0].get("failure"), "the reason is known")
    assert failure.startswith(f"The worker {reason}")
    assert obey.inference.get("/ping").status_code == 200
    assert obey.predict("obey", {}).status_code == 200
    assert "failure" not in obey.describe("obey")["workers"][0]


def test_worker_that_asks_for_another_process(shared_server, model_store):
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


def test_v1_worker_that_dies(obey):
    """V1 says the same under ``error``."""
    answer = obey.v1("obey", [{"do": "exit"}])

    assert (answer.status_code, answer.json()["error"]) == (500, "Worker died.")


def test_same_id_other_process(obey):
    """A restarted worker keeps its id and has another pid (reference 18.4)."""
    before = obey.describe("obey")["workers"][0]
    obey.predict("obey", {"do": "exit"})
    obey.wait_ready("obey")
    after = obey.describe("obey")["workers"][0]

    assert before["id"] == after["id"]
    assert before["pid"] != after["pid"] == obey.workers()[0].pid


def test_idle_worker_that_is_killed(obey):
    """A worker killed while idle is replaced; what comes meanwhile waits for its successor (F39)."""
    obey.workers()[0].kill()
    wait_until(lambda: obey.describe("obey")["workers"][0]["status"] != "READY", "its end is noticed")

    assert obey.predict("obey", {}).status_code == 200


def test_request_for_a_worker_that_was_just_killed(obey):
    """What was sent to a worker that was killed a moment before, and was never begun, is served (F39)."""
    for _ in range(2):
        obey.wait_ready("obey")
        os.kill(obey.describe("obey")["workers"][0]["pid"], signal.SIGKILL)
        assert obey.predict("obey", {}).status_code == 200


def test_descriptions_without_descriptors(obey):
    """A server that can open nothing more tells what it knows of its models (F38)."""
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


def left_behind(server):
    """Programs that handlers have started in sessions of their own."""
    return [psutil.Process(server.predict("obey", {"do": "daemon"}).json()["pid"]) for _ in range(3)]


def have_ended(processes):
    """Whether none runs; whoever inherits them need not have looked yet."""
    ended = True
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            ended = ended and process.status() == psutil.STATUS_ZOMBIE
    return ended


def test_children_end_with_their_worker(shared_server):
    """What a handler started in sessions of its own is gone when its worker is, however that ended (F45)."""
    shared_server.registered("obey.mar")
    first = left_behind(shared_server)
    shared_server.predict("obey", {"do": "exit"})
    wait_until(lambda: have_ended(first), "they end with a worker that left by itself", 5)
    second = left_behind(shared_server)
    assert not have_ended(second)
    shared_server.unregister("obey")

    wait_until(lambda: have_ended(second), "they end with a worker that was told to", 5)


@pytest.mark.parametrize("how", ["exit", pytest.param("unregistered", marks=pytest.mark.slow)])
def test_orphans_end_with_their_worker(shared_server, how):
    """Fifty processes that a handler forked, which left its session and its family and mind no signal, are
    gone when their worker is, however that ended; those of another worker are not touched (F45).
    """
    for name in ("leaving", "staying"):
        shared_server.registered("obey.mar", model_name=name)
    orphans, others = (
        [
            psutil.Process(pid)
            for pid in shared_server.predict(name, {"do": "orphans", "count": count}).json()["pids"]
        ]
        for name, count in (("leaving", 50), ("staying", 5))
    )
    assert len({process.pid for process in orphans}) == 50
    assert {os.getsid(process.pid) for process in orphans}.isdisjoint(
        {worker.pid for worker in shared_server.workers()}
    )
    assert not any(have_ended([process]) for process in orphans)
    if how == "exit":
        shared_server.predict("leaving", {"do": "exit"})
    else:
        shared_server.unregister("leaving")

    wait_until(lambda: have_ended(orphans), "they end", 5)
    assert not any(have_ended([process]) for process in others)
    shared_server.management.delete("/models/leaving")
    shared_server.unregister("staying")
    wait_until(lambda: have_ended(others), "the others end with theirs", 5)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_children_end_with_the_server(tmp_path, model_store, killed):
    """When it stops; after a kill, when the next one starts (F48)."""
    server = Server(Home(tmp_path), model_store).start()
    try:
        children = left_behind(server.registered("obey.mar"))
        if not killed:
            server.stop()
            assert have_ended(children)
    finally:
        server.process.kill()
        server.kill()
    with serving(Server(Home(tmp_path), model_store)):
        assert have_ended(children)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_killed_under_load(shared_server, pool, name):
    """Under load a killed worker costs only what it was computing; all else is answered, each once (F39)."""
    shared_server.registered("obey.mar", model_name="loaded", initial_workers=2, batch_size=2)
    tokens = [f"token-{n}" for n in range(60)]
    futures = [
        pool.submit(shared_server.predict, "loaded", {"do": "sleep", "seconds": 0.02, "token": token})
        for token in tokens
    ]
    wait_until(lambda: sum(future.done() for future in futures) > 10, "the load is on")
    os.kill(shared_server.describe("loaded")["workers"][0]["pid"], getattr(signal, name))
    answers = [future.result(20) for future in futures]
    lost = [answer for answer in answers if answer.status_code != 200]

    assert {answer.status_code for answer in lost} <= {500}
    assert len(lost) <= 4
    for token, answer in zip(tokens, answers, strict=True):
        assert answer.status_code == 500 or answer.json()["token"] == token
    shared_server.unregister("loaded")


def test_batch_that_kills(shared_server, pool):
    """All requests of the batch that killed its worker are answered once, what waited
    behind it is served (F21).
    """
    shared_server.registered("obey.mar", model_name="batched", batch_size=2, max_batch_delay=200)
    orders = [{"do": "exit"}, {"do": "sleep", "seconds": 0.1}, {"do": "nothing"}, {"do": "nothing"}]
    first = [pool.submit(shared_server.predict, "batched", order) for order in orders[:2]]
    second = [pool.submit(shared_server.predict, "batched", order) for order in orders[2:]]

    statuses = [future.result(20).status_code for future in first + second]
    assert 500 in statuses
    assert set(statuses) <= {200, 500}
    assert statuses.count(500) <= 2
    shared_server.unregister("batched")


def test_response_timeout(shared_server):
    """A worker that does not answer in time costs its request a 500 (V1: 504) and is
    replaced at once (F39).
    """
    shared_server.registered("obey.mar", model_name="slow", response_timeout=1)
    before = shared_server.predict("slow", {}).json()["pid"]
    answer = shared_server.predict("slow", {"do": "sleep", "seconds": 30})

    assert (answer.status_code, answer.json()["message"]) == (500, "Worker died.")
    assert 0.9 < answer.elapsed.total_seconds() < 3
    assert shared_server.v1("slow", [{"do": "sleep", "seconds": 30}]).status_code == 504
    after = shared_server.predict("slow", {}).json()["pid"]
    assert before != after
    wait_until(lambda: not psutil.pid_exists(before), "the hung process is gone")
    shared_server.unregister("slow")


def test_stopped_worker(shared_server):
    """A worker that is stopped by a signal counts as one that does not answer (F39)."""
    shared_server.registered("obey.mar", model_name="stopped", response_timeout=1)
    pid = shared_server.predict("stopped", {}).json()["pid"]
    os.kill(pid, signal.SIGSTOP)

    assert shared_server.predict("stopped", {}).status_code == 500
    assert shared_server.predict("stopped", {}).json()["pid"] != pid
    shared_server.unregister("stopped")


def test_startup_timeout(start_server):
    """A model that takes too long to load fails its registration with the timeout and the
    last output (F40).
    """
    server = start_server(environment={"E2E_LOAD_SECONDS": "30"})
    answer = server.register("slow_start.mar", startup_timeout=1)

    assert answer.status_code == 500
    assert "startup_timeout=1 s" in answer.json()["message"]
    assert "loading slowly" in answer.json()["message"]
    assert server.workers() == []


def test_loading_slower_than_an_answer(start_server):
    """Loading may take longer than the response timeout (F42)."""
    server = start_server(environment={"E2E_LOAD_SECONDS": "1.5"}).registered(
        "slow_start.mar", response_timeout=1
    )

    assert server.predict("slow_start").text == "loaded"


def test_startup_model_that_cannot_load(start_server):
    """A startup model whose handler cannot load is listed as FAILED with the cause; others
    are served (F55).
    """
    server = start_server(load_models="missing_module.mar,echo.mar", default_workers_per_model=1)
    worker = wait_until(
        lambda: next(
            (w for w in server.describe("missing_module")["workers"] if w["status"] == "FAILED"), None
        ),
        "it is given up",
    )

    assert "surely_not_installed" in worker["failure"]
    assert server.predict("echo", b"x").content == b"x"
    assert server.inference.get("/ping").status_code == 500


@pytest.mark.slow
def test_random_changes(shared_server, pool):
    """Clients that register, scale, ask and remove one model at once leave a server that works (F51)."""
    allowed = {
        "register": {200, 206, 409, 500},
        "scale": {200, 206, 404, 500},
        "unregister": {200, 404},
        "ask": {200, 404, 500, 503},
    }
    stop = time.monotonic() + 4

    def change(client):
        chosen = random.Random(client)
        found = set()
        while time.monotonic() < stop:
            verb = chosen.choice(list(allowed))
            if verb == "register":
                answer = shared_server.register("echo.mar", model_name="contested")
            elif verb == "scale":
                path = f"/models/contested?min_worker={chosen.randrange(3)}&synchronous=true"
                answer = shared_server.management.put(path)
            elif verb == "unregister":
                answer = shared_server.management.delete("/models/contested")
            else:
                answer = shared_server.predict("contested", b"x")
            found.add((verb, answer.status_code))
        return found

    outcomes = set().union(*pool.map(change, range(8)))
    assert {(verb, status) for verb, status in outcomes if status not in allowed[verb]} == set()
    shared_server.management.delete("/models/contested")
    wait_until(lambda: not shared_server.workers(), "all workers end")
    shared_server.registered("echo.mar", model_name="contested")
    assert shared_server.predict("contested", b"x").content == b"x"
    shared_server.unregister("contested")


def test_third_time(start_server, tmp_path):
    """A handler that fails to load twice and then does is tried again, with growing pauses (F41)."""
    server = start_server(environment={"E2E_COUNT_FILE": str(tmp_path / "count")})
    server.register("third_time.mar", synchronous=False)
    assert "try 1 fails" in wait_until(
        lambda: server.describe("third_time")["workers"][0].get("failure"), "the first failure"
    )

    assert server.predict("third_time").text == "at last"
    server.home.wait_for_log("Retry worker")


def test_no_retry_storm(shared_server):
    """What can never load is not tried again (F40)."""
    shared_server.register("missing_module.mar", synchronous=False)
    wait_until(
        lambda: [w["status"] for w in shared_server.describe("missing_module")["workers"]] == ["FAILED"],
        "it is given up",
    )

    assert shared_server.home.log().count("is given up") == 1
    assert shared_server.workers() == []
    shared_server.unregister("missing_module")


def test_much_output(obey):
    """Megabytes on standard output and error block nobody; a line without an end is cut (F44)."""
    answer = obey.predict("obey", {"do": "print", "megabytes": 20})

    assert (answer.status_code, answer.text) == (200, "printed")
    wait_until(lambda: "begin" in obey.home.log("model_log.log"), "the output is in the log")
    assert max(map(len, obey.home.log("model_log.log").splitlines())) < 10_000


def test_raw_writes(obey):
    """Bytes written straight to the standard descriptors disturb nothing (F44)."""
    assert obey.predict("obey", {"do": "write"}).text == "written"
    assert obey.predict("obey", {}).status_code == 200


def test_handler_that_changes_its_surroundings(obey):
    """Threads left behind, another directory, ignored signals: the worker serves on and
    ends when it should (F45).
    """
    assert obey.predict("obey", {"do": "thread"}).text == "left"
    assert obey.predict("obey", {"do": "chdir"}).text == "gone"
    assert obey.predict("obey", {}).status_code == 200


def test_scaling_down_with_threads_left(shared_server):
    """A worker with a thread that never ends is gone soon after it was scaled away (F45)."""
    shared_server.registered("obey.mar", model_name="threads")
    shared_server.predict("threads", {"do": "thread"})
    shared_server.management.put("/models/threads?min_worker=0&synchronous=true")

    wait_until(lambda: not shared_server.workers(), "the worker ends", 10)
    shared_server.unregister("threads")


@pytest.mark.slow
def test_scaling_under_load(shared_server, pool):
    """Scaling up and down while requests come loses none of them (F50)."""
    shared_server.registered("obey.mar", model_name="breathing", initial_workers=2, batch_size=4)
    stop = time.monotonic() + 3

    def ask(client):
        answers = []
        while time.monotonic() < stop:
            token = f"{client}-{len(answers)}"
            answer = shared_server.predict("breathing", {"do": "sleep", "seconds": 0.005, "token": token})
            answers.append((answer.status_code, answer.json().get("token") == token))
        return answers

    futures = [pool.submit(ask, client) for client in range(8)]
    for workers in (1, 3, 1, 2):
        answer = shared_server.management.put(f"/models/breathing?min_worker={workers}&synchronous=true")
        assert answer.status_code == 200, answer.text
    answers = [answer for future in futures for answer in future.result(20)]

    assert len(answers) > 100
    assert set(answers) == {(200, True)}
    shared_server.unregister("breathing")


def test_killed_server(tmp_path, model_store):
    """When the server is killed its workers end within 5 s; the next start sweeps up what it left (F48)."""
    home = Home(tmp_path)
    server = Server(
        home, model_store, settings={"load_models": "obey.mar", "default_workers_per_model": 2}
    ).start()
    try:
        server.wait_ready("obey", 2)
        pid = server.pid
        # One of them hangs in user code: it must end all the same.
        with ThreadPoolExecutor(1) as executor:
            hanging = executor.submit(server.predict, "obey", {"do": "sleep", "seconds": 60})
            wait_until(lambda: server.metric("modelserver_batches_in_flight") == 1, "it hangs")
            server.process.kill()
            assert isinstance(hanging.exception(10), Exception)
        wait_until(lambda: not worker_processes(pid), "its workers end", 5)
    finally:
        server.kill()
    left = home.workdirs()
    assert len(left) == 1
    assert home.pid_file.exists()

    with serving(Server(home, model_store)) as again:
        assert "Removing orphan pid file." in home.output()
        assert left[0] not in home.workdirs()
        assert again.inference.get("/ping").status_code == 200


def test_a_model_whose_load_keeps_failing(start_server, tmp_path):
    """After the third failure in a row requests are refused at once, those that wait too, with the reason; a
    load that succeeds ends that (F40, F41).
    """
    marks, wanted = tmp_path / "tries", tmp_path / "wanted"
    handler = tmp_path / "moody.py"
    handler.write_text(
        "from pathlib import Path\n\ndef handle(data, context):\n    if data is None:\n"
        f"        if not Path({str(wanted)!r}).exists():\n"
        f"            Path({str(marks)!r}).open('a').write('x')\n"
        "            raise RuntimeError('the licence server is down')\n"
        "        return None\n    return ['served'] * len(data)\n"
    )
    store = tmp_path / "own-store"
    build_archive(ArchiveConfig("moody", str(handler), "1.0", export_path=store))
    server = start_server(model_store=store)
    assert server.register("moody.mar", synchronous="false").status_code == 202

    refused = server.predict("moody")
    assert refused.status_code == 503
    assert refused.json()["message"].startswith('Model "moody" has no worker to serve inference request.')
    assert "Its workers fail: RuntimeError: the licence server is down" in refused.json()["message"]
    assert len(marks.read_text()) == 3
    wanted.touch()
    assert wait_until(lambda: server.predict("moody").text == "served", "it is loaded at last")
