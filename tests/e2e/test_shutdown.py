"""Ending a server that is busy (fault 49)."""

from __future__ import annotations

import signal
import socket
import time

from tests.e2e.serving import wait_until


def ask(server, count, pool, seconds=0.05):
    """Requests that keep one worker busy; returns when all are accepted."""
    futures = [
        pool.submit(server.predict, "obey", {"do": "sleep", "seconds": seconds, "token": n})
        for n in range(count)
    ]
    wait_until(
        lambda: server.metric("ts_inference_requests_total", model_name="obey") >= count,
        "the requests are accepted",
    )
    return futures


def test_sigterm_with_a_queue(start_server, pool):
    """After SIGTERM what was accepted is answered, then the server ends with status 0 (F49)."""
    server = start_server().registered("obey.mar", batch_size=4)
    futures = ask(server, 20, pool, 0.1)
    server.terminate()
    answers = [future.result(20) for future in futures]

    assert [answer.status_code for answer in answers] == [200] * 20
    assert [answer.json()["token"] for answer in answers] == list(range(20))
    assert server.stop() == 0


def test_open_windows_are_not_waited_for(start_server, pool):
    """A batch that still gathers goes at once when the server ends."""
    server = start_server().registered("obey.mar", batch_size=8, max_batch_delay=20_000)
    future = ask(server, 1, pool)[0]
    server.terminate()

    assert future.result(5).status_code == 200
    assert server.stop() == 0


def test_new_connections_are_refused(start_server, pool):
    """While it drains, a server takes no new connections."""
    server = start_server().registered("obey.mar")
    futures = ask(server, 2, pool, 0.7)
    server.terminate()

    def refused():
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
        except OSError:
            return True
        return False

    wait_until(refused, "new connections are refused", 5)
    assert not all(future.done() for future in futures)
    assert [future.result(10).status_code for future in futures] == [200, 200]


def test_drain_timeout(start_server, pool):
    """What is not done within ``drain_timeout`` is answered with an error, and the server ends."""
    server = start_server(drain_timeout="0.5").registered("obey.mar")
    futures = ask(server, 3, pool, 30)
    started = time.monotonic()
    server.terminate()

    assert server.process.wait(10) == 0
    assert time.monotonic() - started < 8
    assert sorted(future.result(10).status_code for future in futures)[-1] == 503
    assert {future.result(10).status_code for future in futures} <= {500, 503}


def test_second_sigterm(tmp_path, start_server, pool):
    """A second SIGTERM ends the server at once, and its workers with it (F49)."""
    server = start_server().registered("obey.mar")
    futures = ask(server, 2, pool, 20)
    server.terminate()
    wait_until(lambda: "Stopping" in server.home.log(), "it drains")
    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(3) == 1
    wait_until(lambda: not server.workers(), "its workers end", 5)
    assert all(future.exception(10) is not None for future in futures)
    for left in server.home.workdirs():
        left.rename(tmp_path / "swept-at-the-next-start")
    server.home.pid_file.unlink(missing_ok=True)


def test_idle_connections_do_not_delay_the_end(start_server):
    """Connections that are merely kept open are closed."""
    server = start_server()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as idle:
        idle.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        started = time.monotonic()

        assert server.stop() == 0
        assert time.monotonic() - started < 3


def test_sigterm_while_loading(start_server):
    """A server that is told to stop while models load does so."""
    server = start_server(environment={"E2E_LOAD_SECONDS": "30"})
    server.register("slow_start.mar", synchronous=False)

    assert server.stop() == 0
