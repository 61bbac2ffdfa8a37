"""The rest of faults that other tests show in part, so that each is shown whole.

Of the faults that are not shown to the letter, this is why:

* F15, slow heads and bodies: clients are given 60 s. Tests of the protocol have a clock of their own; against
  a running server ``python -m tests.campaign wire`` waits for it.
* F16, unknown verbs: what the parser knows is 405 with ``Allow``; other words are no HTTP to it, hence 400.
* F30, 503 within 10 ms: what is bounded is the processor time of a refusal, as a busy machine delays answers.
* F32, ten times the load for 60 s: ``test_faults.py`` ends after as many answers as show a steady state; what
  is bounded there does not depend on the time.
* F35, clock jumps: a test cannot set the machine's clock. It sets what Python tells of it.
* F43, smaller batches after want of memory: not offered; the batch is answered 507 and the handler is not
  driven into it again. A kill by a cgroup is told by the system's counter, which the test moves.
* F49, readiness 503 before the queue is drained: the listening sockets are closed at once, so that a probe is
  refused; there is no connection left to answer 503 on.
* F51, 60 s: 8 s, in which more than a hundred changes are accepted; 60 s with ``MODELSERVER_LONG_TESTS=1``.
* F57, 200 models: 40, which show that eight load at a time; 200 with ``MODELSERVER_LONG_TESTS=1``.
* F61, ``--require-safetensors``: not offered. Pickles are loaded with ``weights_only`` and refused otherwise.
* F62, remote URLs off by default, sums of archives: public hosts are allowed on purpose, as in TorchServe,
  and archives carry no sums.
* F70, ten minutes of schemathesis: ``test_openapi_conformance.py`` is bounded by examples, not by time; there
  are more, and each value that a schema names, with ``MODELSERVER_LONG_TESTS=1``.
* F71, half an hour: ``python -m tests.campaign soak``, for as long as one likes; its short form is among the
  slow tests.
* F72, a thousand cycles: ``test_faults.py`` has 200, and ``python -m tests.campaign leaks`` thousands. What
  grew with them has tests of its own: ``test_server.py`` (heaps of threads), ``test_snapshot_files.py``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import statistics
import time
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.e2e.raw import connect, converse, everything, head, post
from tests.e2e.serving import wait_until

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from tests.e2e.conftest import StartServer
    from tests.e2e.serving import Server

MIB = 1 << 20
SECONDS_OF_CHANGES = 60 if os.environ.get("MODELSERVER_LONG_TESTS") else 8


def cpu(process: psutil.Process) -> float:
    """Its processor seconds so far."""
    times = process.cpu_times()
    return times.user + times.system


# Input


def test_lengths_that_lie(server: Server) -> None:
    """A body that is longer than its length says is answered as far as it goes, and the connection ends; one
    that never comes to its end is never computed (F5).
    """
    server.registered("echo.mar")
    path = "/predictions/echo"
    answers = converse(server.port, head(path, "Content-Length: 5") + b"hello, and more\r\n\r\n")
    with connect(server.port) as connection:
        connection.sendall(head(path, "Content-Length: 500") + b"hello")
    wait_until(lambda: server.predict("echo", b"x").content == b"x", "the server lives")

    assert answers.count(b"HTTP/1.1 ") == 1
    assert answers.endswith(b"\r\n\r\nhello")
    assert server.metric("modelserver_batch_size_count", model_name="echo") == 2


@pytest.mark.slow
def test_millions_of_tiny_chunks(server: Server) -> None:
    """A body over the limit in chunks of one byte is 413, and costs memory in proportion to its bytes
    (F5).
    """
    server.registered("echo.mar")
    process = psutil.Process(server.pid)
    before, most = process.memory_info().rss, 0
    piece = b"2\r\nxx\r\n" * 10_000
    with connect(server.port) as connection:
        connection.sendall(head("/predictions/echo", "Transfer-Encoding: chunked"))
        with contextlib.suppress(ConnectionError):
            for number in range(350):
                connection.sendall(piece)
                if number % 25 == 0:
                    most = max(most, process.memory_info().rss)
        answer = everything(connection)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert most - before < 32 * MIB


def test_thousands_of_outputs(server: Server) -> None:
    """A list of ten thousand outputs is refused or answered with those that there are, in no time (F9)."""
    server.registered("mirror.mar")
    process = psutil.Process(server.pid)
    body = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}],
        "outputs": [{"name": f"output_{number}"} for number in range(10_000)],
    }
    before = cpu(process)
    answer = server.inference.post("/v2/models/mirror/infer", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("outputs: there are 10000")
    assert cpu(process) - before < 1


@pytest.mark.parametrize(
    "body",
    [{"instances": {"a": [1, 2], "b": [1]}}, {"inputs": {"a": [1, 2], "b": [1]}}, {"instances": 5}],
    ids=["columns", "columns as inputs", "a number"],
)
def test_columns_of_unequal_length(server: Server, body: dict[str, Any]) -> None:
    """Columns instead of rows are no V1 request here, whatever their lengths, in KServe's words (F10)."""
    server.registered("rows.mar", split_instances=True)
    answer = server.inference.post("/v1/models/rows:predict", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"].startswith('can\'t Unmarshal body: Expected "instances" to be a list')


def test_ten_thousand_parameters(server: Server) -> None:
    """Ten thousand parameters in a query are no trouble (F14)."""
    server.registered("echo.mar")
    query = "&".join(f"{number:x}" for number in range(10_000))

    assert server.predict(f"echo?{query}", b"x").content == b"x"


# Clients that leave


@pytest.mark.parametrize("leaving", [1, 3, 4])
@pytest.mark.parametrize("when", ["forming", "running", "returning"])
def test_clients_that_leave(server: Server, pool: ThreadPoolExecutor, leaving: int, when: str) -> None:
    """Of four requests that share a batch any number may be left by their clients, while it forms, runs or is
    answered: those that stay are answered with their own, and nothing is left (F24, F37).
    """
    # A batch of five waits for a fifth request, or until its time has passed.
    size, delay = (5, 1500) if when == "forming" else (4, 20_000)
    server.registered("obey.mar", batch_size=size, batch_policy="window", max_batch_delay=delay)
    big = {"do": "big", "bytes": 6_000_000}
    orders: list[dict[str, Any]] = [
        big if when == "returning" else {"do": "sleep", "seconds": 0.3, "token": number}
        for number in range(4)
    ]
    text = "Content-Type: application/json"
    with contextlib.ExitStack() as stack:
        leavers = [stack.enter_context(connect(server.port, small=True)) for _ in range(leaving)]
        for leaver, order in zip(leavers[:3], orders, strict=False):
            leaver.sendall(post("/predictions/obey", json.dumps(order).encode(), text))
        server.wait_pending("obey", min(leaving, 3))
        staying = [pool.submit(server.predict, "obey", order) for order in orders[leaving:]]
        for leaver, order in zip(leavers[3:], orders[3:], strict=False):
            leaver.sendall(post("/predictions/obey", json.dumps(order).encode(), text))
        if when == "forming":
            server.wait_pending("obey", 4)
        elif when == "running":
            wait_until(lambda: server.metric("modelserver_batches_in_flight") == 1, "the batch runs")
        else:
            # The rest of each is more than the system keeps.
            assert all(leaver.recv(100).startswith(b"HTTP/1.1 200 ") for leaver in leavers)
    answers = [future.result(30) for future in staying]

    assert [answer.status_code for answer in answers] == [200] * (4 - leaving)
    together = 4 - leaving if when == "forming" else 4
    assert [answer.headers["x-batch-size"] for answer in answers] == [str(together)] * (4 - leaving)
    if when == "returning":
        assert [len(answer.content) for answer in answers] == [6_000_000] * (4 - leaving)
    else:
        assert [answer.json()["token"] for answer in answers] == list(range(leaving, 4))
    wait_until(lambda: server.metric("modelserver_queue_requests") == 0, "nothing waits")
    wait_until(lambda: server.metric("modelserver_batches_in_flight") == 0, "nothing runs")
    cancelled = server.metric("modelserver_cancelled_total", model_name="obey")
    assert cancelled == (0 if when == "returning" else leaving)
    batches = server.metric("modelserver_batch_size_count", model_name="obey")
    assert batches == (0 if when == "forming" and leaving == 4 else 1)
    if when != "forming":
        assert server.metric("modelserver_batch_size_sum", model_name="obey") == 4


# Load


@pytest.mark.slow
def test_idle_server(start_server: StartServer) -> None:
    """With models and idle connections a server, and each worker, needs less than 1 % of a processor
    (F29).
    """
    server = start_server().registered("echo.mar", initial_workers=2, batch_size=8).registered("obey.mar")
    assert server.predict("echo", b"x").content == b"x"
    time.sleep(2)
    processes = [psutil.Process(server.pid), *server.workers()]
    before = [cpu(process) for process in processes]
    time.sleep(10)

    assert max(cpu(process) - spent for process, spent in zip(processes, before, strict=True)) < 0.1


@pytest.mark.slow
def test_refusing_is_cheap(start_server: StartServer, pool: ThreadPoolExecutor) -> None:
    """While a queue is full, each new connection is accepted and refused, for less than 10 ms of a processor
    (F30).
    """
    server = start_server(job_queue_size=2).registered("obey.mar")
    process = psutil.Process(server.pid)
    busy = [pool.submit(server.predict, "obey", {"do": "sleep", "seconds": 2}) for _ in range(1)]
    wait_until(lambda: server.metric("modelserver_batches_in_flight") == 1, "the worker is busy")
    waiting = [pool.submit(server.predict, "obey", {}) for _ in range(3)]
    server.wait_pending("obey", 2)
    before, asked = cpu(process), post("/predictions/obey", b"{}", "Connection: close")
    answers = [converse(server.port, asked) for _ in range(50)]
    spent = cpu(process) - before

    assert not busy[0].done()
    assert all(answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer for answer in answers)
    assert spent / 50 < 0.01
    assert [future.result(20).status_code for future in (*busy, *waiting)] == [200] * 4


@pytest.mark.slow
def test_bytes_that_wait(start_server: StartServer, pool: ThreadPoolExecutor) -> None:
    """What waits is bounded in bytes too: what would be too much is refused, told and counted, smaller ones
    are taken (F31).
    """
    server = start_server(job_queue_bytes=1_000_000).registered("obey.mar")
    busy = pool.submit(server.predict, "obey", {"do": "sleep", "seconds": 2})
    wait_until(lambda: server.metric("modelserver_batches_in_flight") == 1, "the worker is busy")
    large = json.dumps({"do": "nothing", "filling": "f" * 600_000}).encode()
    text = {"Content-Type": "application/json"}
    # One may wait at the worker already: it is no longer in the queue.
    statuses = list(pool.map(lambda _: server.predict("obey", large, headers=text).status_code, range(4)))
    small = server.predict("obey", {})

    assert sorted(set(statuses)) == [200, 503]
    assert server.metric("modelserver_rejected_total", reason="bytes") == statuses.count(503)
    assert (busy.result(20).status_code, small.status_code) == (200, 200)


@pytest.mark.slow
def test_a_gigabyte_of_output(server: Server, pool: ThreadPoolExecutor) -> None:
    """A handler that prints 1 GB without an end of line, and a line on the other stream for each MB, is
    answered; other models are served meanwhile, and the log stays small (F44).
    """
    server.registered("obey.mar", response_timeout=110).registered("echo.mar")
    before = psutil.Process(server.pid).memory_info().rss
    printing = pool.submit(server.predict, "obey", {"do": "print", "megabytes": 1000}, timeout=110)
    waits = []
    while not printing.done():
        began = time.monotonic()
        assert server.predict("echo", b"x").content == b"x"
        waits.append(time.monotonic() - began)

    assert printing.result().text == "printed"
    assert len(waits) > 10
    assert statistics.median(waits) < 0.5
    assert len(server.home.log("model_log.log")) < 20 * MIB
    assert psutil.Process(server.pid).memory_info().rss - before < 64 * MIB


# Models


@dataclass(frozen=True)
class Change:
    """An accepted change: when it was asked for and answered, and the workers it wants; None: no model."""

    asked: float
    answered: float
    workers: int | None


@pytest.mark.slow
def test_the_last_change_counts(server: Server, pool: ThreadPoolExecutor) -> None:
    """Twenty clients register, scale and remove one model at random; what was accepted last is how it is when
    they are done (F51).
    """
    stop = time.monotonic() + SECONDS_OF_CHANGES

    def change(client: int) -> list[Change]:
        chance, accepted = random.Random(client), []
        while time.monotonic() < stop:
            kind, asked = chance.randrange(3), time.monotonic()
            workers: int | None = chance.randrange(3)
            if kind == 0:
                answer = server.register("echo.mar", model_name="contested", initial_workers=workers)
            elif kind == 1:
                answer = server.management.put(f"/models/contested?min_worker={workers}")
            else:
                answer, workers = server.management.delete("/models/contested"), None
            if answer.status_code == 500 and kind == 0:
                # Another client took the workers away that it waited for: the model is gone with them.
                workers = None
            else:
                # 206: registered, but the workers that it waited for were scaled away.
                assert answer.status_code in (200, 202, 206, 404, 409), answer.text
            if answer.status_code in (200, 202, 206, 500):
                accepted.append(Change(asked, time.monotonic(), workers))
        return accepted

    changes = [each for accepted in pool.map(change, range(20)) for each in accepted]
    # Those that were asked for before the last of them was asked for and answered may be the last.
    begun = max(each.asked for each in changes)
    possible = {each.workers for each in changes if each.answered >= begun}
    found = server.management.get("/models/contested")
    workers = found.json()[0]["minWorkers"] if found.status_code == 200 else None

    assert workers in possible
    assert len(changes) > 20
    wait_until(lambda: len(server.workers()) == (workers or 0), "there are as many workers as it says")
    if workers is None:
        server.registered("echo.mar", model_name="contested")
    elif not workers:
        assert server.management.put("/models/contested?min_worker=1&synchronous=true").status_code == 200
    assert server.predict("contested", b"x").content == b"x"


@pytest.mark.slow
def test_packages_with_hashes(start_server: StartServer, tmp_path: Path, model_store: Path) -> None:
    """A model's requirements may name the hash of each package: another file is refused, with pip's reason
    (F67).
    """
    wheel = tmp_path / "harmless-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("harmless.py", "answer = 42\n")
        info = "harmless-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: harmless\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    code = tmp_path / "hashed.py"
    code.write_text(
        "import harmless\n\ndef handle(data, context):\n    return [harmless.answer] * len(data or [])\n"
    )
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    server = start_server(install_py_dep_per_model="true")
    said = {}
    for name, digest in (("right", right), ("wrong", "0" * 64)):
        manifest = {"model": {"modelName": name, "modelVersion": "1.0", "handler": "hashed.py",
                              "requirementsFile": "requirements.txt"}}  # fmt: skip
        with zipfile.ZipFile(model_store / f"hashed-{name}.mar", "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
            archive.writestr("hashed.py", code.read_text())
            archive.writestr("requirements.txt", f"{wheel.as_uri()} --hash=sha256:{digest}\n")
        said[name] = server.register(f"hashed-{name}.mar", timeout=100)

    assert said["right"].status_code == 200, said["right"].text
    assert server.predict("right", b"").text == "42"
    assert said["wrong"].status_code >= 400
    assert "HASH" in said["wrong"].text.upper()
