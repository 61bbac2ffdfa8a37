import asyncio
import os
import socket

import psutil
import pytest
from tests.tools.migrate.sites import playing, recorded
from tests.waiting import is_alive, until

from modelserver.tools.migrate import servers
from modelserver.tools.migrate.calls import MigrationError, Probe, Response


def addresses(urls):
    return {port: ("127.0.0.1", int(url.rpartition(":")[2])) for port, url in urls.items()}


def test_versions_are_read_from_descriptions():
    with playing(recorded()) as urls:
        server = servers.running_server("TorchServe", addresses(urls), {})
        result = server.versions()

    described = [(version.name, version.batch_size, version.ready, version.settled) for version in result]
    assert described == [("parts", 1, 1, True), ("plain", 4, 1, True), ("reads", 1, 1, True)]
    assert server.pid == os.getpid()
    assert (server.memory() or 0) > 1 << 20


@pytest.mark.parametrize(
    ("described", "settled"),
    [
        ({"minWorkers": 1, "workers": [{"status": "READY"}]}, True),
        ({"minWorkers": 2, "workers": [{"status": "READY"}, {"status": "LOADING"}]}, False),
        ({"minWorkers": 1, "workers": [{"status": "LOADING", "failure": "no module"}]}, True),
        ({"minWorkers": 1, "failure": "no archive"}, True),
        ({"minWorkers": 0}, True),
    ],
)
def test_version_is_settled_when_workers_are_ready_or_failed(described, settled):
    assert servers.ServedVersion.of({"modelName": "m", "modelVersion": "1", **described}).settled is settled


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"message": "Token Authentication failed."}', r"Token Authentication failed.*--key-file"),
        (200, b"<html>not this</html>" + b" " * 999, "/models was answered 200 <html>not this</html>"),
        (200, b"{}", "/models was answered 200 {}"),
        (200, b"[1]", r"/models was answered 200 \[1\]"),
        (200, b'{"models": []}', "inference address: .*/ping: 404"),
    ],
    ids=["tokens", "page", "object", "list", "another port"],
)
def test_a_server_that_is_another_is_reported(status, body, message):
    answer = Response(status, "", {}, body)
    answers = {'management GET /models?limit=100 ""': answer, 'management GET /models ""': answer}
    with playing(answers) as urls, pytest.raises(MigrationError, match=message):
        servers.running_server("TorchServe", addresses(urls), {})


def test_a_server_that_is_not_there_is_reported():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = closed.getsockname()
        assert servers.listener(address[1]) is None
        with pytest.raises(MigrationError, match=f"http://127.0.0.1:{address[1]}/models was answered Conn"):
            servers.running_server("TorchServe", {"inference": address, "management": address}, {})


def test_tokens_are_for_their_port_unless_the_request_has_one():
    server = servers.ComparedServer("TorchServe", {}, {"inference": "secret"})

    assert server.headers(Probe("", "inference", "GET", "/")) == (("Authorization", "Bearer secret"),)
    assert server.headers(Probe("", "management", "GET", "/")) == ()
    own = (("authorization", "mine"),)
    assert server.headers(Probe("", "inference", "GET", "/", own)) == own
    assert "secret" not in repr(server)


def launch(folder, script, **more):
    command = ["/bin/sh", "-c", script]
    return servers.Launch(
        "It", command, {"management": ("127.0.0.1", 1)}, folder, os.environ, folder / "output", **more
    )


def test_a_program_that_ends_is_reported_with_its_last_output(tmp_path):
    ends = launch(tmp_path, "echo no such thing; exit 1")
    with pytest.raises(MigrationError, match=r"It does not start:\n.*no such thing"), servers.started(ends):
        pass
    absent = servers.Launch("It", [str(tmp_path / "absent")], {}, tmp_path, {}, tmp_path / "output")
    with pytest.raises(MigrationError, match="It cannot be started"), servers.started(absent):
        pass


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_is_left_of_what_was_started(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(servers.ComparedServer, "ask", lambda *_: Response(200, "OK", {}, b'{"models": []}'))
    sleeping = launch(tmp_path, "sleep 60 & echo ready; sleep 60", started_line="ready", whole=whole)
    with servers.started(sleeping) as server:
        process = psutil.Process(server.pid)
        asyncio.run(until(lambda: len(process.children()) == 2))
        family = [server.pid, *(each.pid for each in process.children())]
        assert (server.seconds or 0) > 0

    assert [pid for pid in family if is_alive(pid)] == []
