"""Faults of the machine: no descriptors, full and read-only disks, stopped and killed processes, and a stop
with thousands of requests in flight (F38, F39, F48, F49, F56).
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from tests.campaign.callers import Answer, Malformed, receive_answer
from tests.campaign.report import Report
from tests.campaign.targets import build_store, target, tracebacks
from tests.e2e.grpc_client import grpc_server
from tests.e2e.raw import connect, post
from tests.e2e.serving import Server, command_of, wait_until

from modelserver.tools.archiver import ArchiveConfig, build_archive

MOST_ROUNDS = 1000
# Shorter runs show one of several faults of the same kind.
BOTH_SECONDS = 60.0
ORPHAN_SECONDS = 5.0
# Noticing that the spawner is gone, and importing torch in a new Python, on a busy machine.
STARTED_ANYHOW = 25.0
IN_FLIGHT = 3000
IN_FLIGHT_SHORT = 1000
# The statuses of requests that are refused for lack of a resource.
REFUSED = (500, 503, 507)


DESCRIBE = b"GET /models/echo HTTP/1.1\r\nHost: localhost\r\n\r\n"


class NotHere(Exception):
    """Something that cannot be tried on this machine; the text says why."""


def run(report: Report, seconds: float) -> None:
    """Each on a server of its own, once at least. A short run shows faults of one kind once."""
    report.short = seconds < BOTH_SECONDS
    end = time.monotonic() + seconds
    done = 0
    while done < MOST_ROUNDS and (not done or time.monotonic() < end) and not report.failures:
        for fault in FAULTS:
            attempt(report, fault, first=not done)
        done += 1
    report.figure("rounds", done)


def attempt(report: Report, fault: Callable[[Report], None], *, first: bool) -> None:
    """One fault; an assertion that fails in it did not hold."""
    name, began = fault.__name__.replace("_", " "), time.monotonic()
    try:
        fault(report)
    except NotHere as reason:
        if first:
            report.skip(name, str(reason))
    except Exception as error:  # noqa: BLE001 - whatever it is, the others are tried too
        report.failures.append(f"{name}: {type(error).__name__}: {error}")
    else:
        if first:
            report.figure(name, f"held, {time.monotonic() - began:.1f} s")


def served(server: Server) -> None:
    """The model ``echo`` answers."""
    answer = server.predict("echo", b"x")
    assert (answer.status_code, answer.content) == (200, b"x"), answer.text


def answer_to(connection: socket.socket, request: bytes) -> Answer:
    connection.sendall(request)
    answer = receive_answer(connection)
    assert answer is not None, "the connection ended instead"
    return answer


def unsurprised(server: Server) -> None:
    assert not tracebacks(server), tracebacks(server)[:3]


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be written there meanwhile, not by root either. Raises NotHere."""
    if os.geteuid():
        mode = folder.stat().st_mode
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(mode)
        return
    for step in (("--bind", folder, folder), ("-o", "remount,bind,ro", folder)):
        done = subprocess.run(["mount", *step], capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["umount", "--quiet", folder], check=False, capture_output=True)
            raise NotHere(f"root writes everywhere, and mount says: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def no_descriptors_left(report: Report) -> None:
    """New connections are closed, old ones served; what needs a descriptor is refused (F38)."""
    with target() as server:
        server.registered("echo.mar")
        with contextlib.ExitStack() as stack:

            def opened(listener: str) -> socket.socket:
                return stack.enter_context(connect(server.port_of(listener), 30))

            inference, management, other = map(opened, ("inference", "management", "management"))
            assert answer_to(inference, post("/predictions/echo", b"x")).body == b"x"
            assert answer_to(management, DESCRIBE).status == 200
            assert answer_to(other, DESCRIBE).status == 200
            held = psutil.Process(server.pid).num_fds()
            stack.enter_context(server.limited(resource.RLIMIT_NOFILE, held + 4))
            for _ in range(20):
                opened("inference")
            assert answer_to(inference, post("/predictions/echo", b"x")).body == b"x"
            assert answer_to(management, DESCRIBE).status == 200
            assert answer_to(other, post("/models?url=obey.mar&initial_workers=1", b"")).status in REFUSED
        server.registered("obey.mar")
        assert server.predict("obey", {}).status_code == 200
        unsurprised(server)


def a_full_disk(report: Report) -> None:
    """Where no file can grow, what is loaded is served, changes are answered; the log goes on (F56)."""
    with target() as server:
        server.registered("echo.mar")
        served(server)
        [workdir] = server.home.workdirs()
        before = sorted(workdir.iterdir())
        with server.limited(resource.RLIMIT_FSIZE, 1):
            for _ in range(50):
                served(server)
            refused = server.register("obey.mar")
            assert refused.status_code in REFUSED
            assert "File too large" in refused.json()["message"], refused.text
            assert sorted(workdir.iterdir()) == before
            assert server.management.put("/models/echo?min_worker=2&synchronous=true").status_code == 200
        server.registered("obey.mar")
        server.predict("echo", b"x", headers={"x-request-id": "late"})
        wait_until(lambda: "/predictions/echo" in server.home.log("access_log.log"), "the log goes on")


def a_read_only_log(report: Report) -> None:
    """Without a place for logs a server starts, serves and changes (F56)."""
    with target_stopped() as server:
        logs = server.home.path / "logs"
        logs.mkdir()
        with read_only(logs), running(server):
            server.registered("echo.mar")
            served(server)


def a_read_only_model_store(report: Report) -> None:
    """What lies there can be registered; what would have to be stored there is refused (F56)."""
    with target() as server:
        with read_only(Path(str(server.settings["model_store"]))):
            server.registered("echo.mar")
            served(server)
            refused = server.register("https://localhost:1/model.mar")
            assert 400 <= refused.status_code < 600, refused.text
        unsurprised(server)


def no_place_for_temporary_files(report: Report) -> None:
    """What is loaded is served, a registration is refused with its reason, and later there is room (F56)."""
    with target() as server:
        server.registered("echo.mar")
        with read_only(server.home.temp):
            refused = server.register("obey.mar")
            assert refused.status_code in REFUSED, refused.text
            assert refused.json()["message"]
            served(server)
        server.registered("obey.mar")
        unsurprised(server)


def workers_that_are_stopped(report: Report) -> None:
    """Their requests are answered with an error, others take their place, other models are served (F39)."""
    with target() as server:
        server.registered("echo.mar").registered("obey.mar", initial_workers=2, response_timeout=1)
        for worker in server.describe("obey")["workers"]:
            os.kill(worker["pid"], signal.SIGSTOP)
        served(server)
        assert server.predict("obey", {}).status_code == 500
        wait_until(lambda: server.predict("obey", {}).status_code == 200, "others take their place")


def a_killed_server(report: Report) -> None:
    """Its workers, its front ends and the spawner end within five seconds (F48)."""
    for front_ends in (2,) if report.short else (1, 2):
        with target_stopped(front_ends) as server:
            # Otherwise its helper would be no child.
            server.home.forks = False
            server.start()
            server.registered("echo.mar", initial_workers=2).registered("obey.mar")
            family = psutil.Process(server.pid).children(recursive=True)
            assert len(family) >= 3
            server.process.kill()
            server.process.wait()
            began = time.monotonic()
            _, alive = psutil.wait_procs(family, ORPHAN_SECONDS)
            assert not alive, [process.cmdline() for process in alive]
            seconds = time.monotonic() - began
            report.figure(f"orphans of {front_ends} front end(s) gone after", f"{seconds:.2f} s")


def a_killed_spawner(report: Report) -> None:
    """Workers can be started soon after the spawner was killed, and while it is stopped (F39, F48)."""
    for number in (signal.SIGSTOP,) if report.short else (signal.SIGKILL, signal.SIGSTOP):
        with target_stopped() as server, started_from_nothing(server):
            build_torch_user(Path(str(server.settings["model_store"])))
            server.registered("torch_user.mar", startup_timeout=60)
            spawners = spawners_of(server)
            if not spawners:
                raise NotHere("there is no spawner")
            for process in spawners:
                process.send_signal(number)
            try:
                began = time.monotonic()
                server.registered("torch_user.mar", model_name="after", startup_timeout=60)
                seconds = time.monotonic() - began
            finally:
                for process in spawners:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(signal.SIGCONT)
            report.figure(f"a worker after {number.name} of the spawner", f"{seconds:.1f} s")
            assert seconds < STARTED_ANYHOW, f"a worker took {seconds:.1f} s after {number.name}"


def build_torch_user(store: Path) -> None:
    """An archive whose workers are forked from the spawner, for its handler imports torch."""
    code = store.parent / "torch_user.py"
    code.write_text(
        "import torch\n\ndef handle(data, context):\n    return [str(torch.ones(1))] * len(data or [])\n"
    )
    build_archive(ArchiveConfig("torch_user", str(code), "1.0", export_path=store))


def spawners_of(server: Server) -> list[psutil.Process]:
    """The processes that workers are forked from."""
    family = psutil.Process(server.pid).children(recursive=True)
    return [process for process in family if "fork_server" in command_of(process)]


def a_stop_with_thousands_in_flight(report: Report) -> None:
    """All that was accepted before SIGTERM is answered 200, and the server ends with status 0 (F49)."""
    count = IN_FLIGHT_SHORT if report.short else IN_FLIGHT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 500:
        raise NotHere(f"this process may have {hard} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 500), hard))
    try:
        for front_ends in (2,) if report.short else (1, 2):
            with target(front_ends, job_queue_size=count + 10, drain_timeout=60) as server:
                stop_in_flight(report, server, front_ends, count)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def stop_in_flight(report: Report, server: Server, front_ends: int, count: int) -> None:
    """One request keeps the worker busy, thousands wait, each on a connection of its own."""
    server.registered("obey.mar", batch_size=64, batch_policy="greedy")
    text = "Content-Type: application/json"
    with contextlib.ExitStack() as stack:
        clients = []
        for number in range(count):
            client = stack.enter_context(connect(server.port, 60))
            order = b'{"do": "sleep", "seconds": %d, "token": %d}' % (3 if number == 0 else 0, number)
            client.sendall(post("/predictions/obey", order, text))
            clients.append(client)
        name = "ts_inference_requests_total"
        wait_until(lambda: server.metric(name, model_name="obey") >= count, "all are accepted", 60)
        began = time.monotonic()
        server.terminate()
        wrong = [number for number, client in enumerate(clients) if not answered(client, number)]
    assert not wrong, f"{len(wrong)} of {count} were not answered with their own, the first: {wrong[:5]}"
    assert server.stop() == 0
    seconds = time.monotonic() - began
    report.figure(
        f"{count:,} in flight at SIGTERM, {front_ends} front end(s)", f"all answered, {seconds:.1f} s"
    )


def answered(client: socket.socket, number: int) -> bool:
    """Whether this connection brings 200 with its own token."""
    try:
        answer = receive_answer(client)
    except (OSError, Malformed):
        return False
    return answer is not None and answer.status == 200 and json.loads(answer.body)["token"] == number


@contextlib.contextmanager
def target_stopped(front_ends: int = 1, **settings: object) -> Iterator[Server]:
    """Like :func:`target`, but neither started nor expected to stop in order; ended at the end."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    server = grpc_server(folder, build_store(folder), frontend_processes=front_ends, **settings)
    try:
        yield server
    finally:
        if server._process is not None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def started_from_nothing(server: Server) -> Iterator[None]:
    """Like :func:`running`; its spawners import torch, as those of tests do not."""
    server.home.forks = False
    with running(server):
        yield


@contextlib.contextmanager
def running(server: Server) -> Iterator[None]:
    server.start()
    yield
    assert server.stop() == 0


FAULTS: tuple[Callable[[Report], None], ...] = (
    no_descriptors_left,
    a_full_disk,
    a_read_only_log,
    a_read_only_model_store,
    no_place_for_temporary_files,
    workers_that_are_stopped,
    a_killed_server,
    a_killed_spawner,
    a_stop_with_thousands_in_flight,
)
