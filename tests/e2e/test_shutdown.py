"""Ending a server that is busy (fault 49)."""

import signal
import socket

from tests.e2e.raw import everything
from tests.e2e.serving import wait_until
from tests.waiting import is_alive


def send(server, count, pool, file):
    """Requests that keep one worker busy until there is a file; returns when all are accepted."""
    before = server.metric("ts_inference_requests_total", model_name="obey")
    orders = [{"do": "wait", "file": str(file), "token": number} for number in range(count)]
    futures = [pool.submit(server.predict, "obey", order) for order in orders]
    server.wait_arrived("obey", before + count)
    return futures


def refuses(server):
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
    except OSError:
        return True
    return False


def test_drained_server_answers_what_it_accepted(start_server, pool, tmp_path):
    """After SIGTERM new connections are refused and idle ones closed, and what was accepted is answered: a
    batch that still gathers goes at once. Then the server ends with status 0, and what its handlers had
    started with it (F45, F49).
    """
    server = start_server().registered("obey.mar", batch_size=4, max_batch_delay=20_000)
    order = {"do": "daemon"}
    programs = [each.json()["pid"] for each in pool.map(lambda _: server.predict("obey", order), range(4))]
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as idle:
        idle.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        futures = send(server, 10, pool, tmp_path / "over")
        server.terminate()
        wait_until(lambda: refuses(server), "new connections are refused")
        (tmp_path / "over").touch()
        responses = [future.result(20) for future in futures]
        assert b"HTTP/1.1" not in everything(idle)  # it comes to its end

    assert [response.status_code for response in responses] == [200] * 10
    assert [response.json()["token"] for response in responses] == list(range(10))
    assert server.stop() == 0
    assert not any(map(is_alive, programs))


def test_drain_timeout_ends_what_is_not_done(start_server, pool, tmp_path):
    """Such requests get an error, and the server ends; models that load do not keep it (F49)."""
    server = start_server(drain_timeout="0.5").registered("obey.mar")
    server.register("slow_start.mar", synchronous=False)
    futures = send(server, 3, pool, tmp_path / "never")
    server.terminate()

    assert server.process.wait(10) == 0
    statuses = sorted(future.result(10).status_code for future in futures)
    assert statuses[-1] == 503
    assert set(statuses) <= {500, 503}


def test_second_sigterm_ends_the_server_at_once(tmp_path, start_server, pool):
    """The server's workers end with it (F49)."""
    server = start_server().registered("obey.mar")
    futures = send(server, 2, pool, tmp_path / "never")
    server.terminate()
    wait_until(lambda: "Stopping" in server.home.log(), "it drains")
    server.process.send_signal(signal.SIGTERM)

    assert server.process.wait(10) == 1
    wait_until(lambda: not server.workers(), "its workers end", 5)
    assert all(future.exception(10) is not None for future in futures)
    for left in server.home.workdirs():
        left.rename(tmp_path / "swept-at-the-next-start")
    server.home.pid_file.unlink(missing_ok=True)
