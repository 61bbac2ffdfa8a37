from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.tools.migrate.sites import playing, recorded

from modelserver.tools.migrate.calls import MigrationError, Probe, Response
from modelserver.tools.migrate.servers import (
    ComparedServer,
    Launch,
    ServedVersion,
    listener,
    running_server,
    started,
)

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.tools.migrate.calls import Port


def addresses(urls: dict[str, str]) -> dict[Port, tuple[str, int]]:
    return {port: ("127.0.0.1", int(url.rpartition(":")[2])) for port, url in urls.items()}  # type: ignore[misc]


def test_versions_are_read_from_descriptions() -> None:
    with playing(recorded()) as urls:
        server = running_server("TorchServe", addresses(urls), {})
        result = server.versions()

    assert [(version.name, version.batch_size, version.ready, version.settled) for version in result] == [
        ("parts", 1, 1, True),
        ("plain", 4, 1, True),
        ("reads", 1, 1, True),
    ]
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
def test_version_is_settled_when_workers_are_ready_or_failed(
    described: dict[str, object], settled: bool
) -> None:
    assert ServedVersion.of({"modelName": "m", "modelVersion": "1", **described}).settled is settled


def test_server_that_requires_tokens_is_reported() -> None:
    refused = Response(400, "Bad Request", {}, b'{"message": "Token Authentication failed."}')
    answers = {'management GET /models?limit=100 ""': refused, 'management GET /models ""': refused}
    with (
        playing(answers) as urls,
        pytest.raises(MigrationError, match=r"Token Authentication failed.*--key-file"),
    ):
        running_server("TorchServe", addresses(urls), {})


def test_a_server_that_is_not_there_is_reported() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(MigrationError, match=f"http://127.0.0.1:{port}/models was answered Connection"):
            running_server(
                "TorchServe", {"inference": ("127.0.0.1", port), "management": ("127.0.0.1", port)}, {}
            )


@pytest.mark.parametrize("body", [b"<html>not TorchServe</html>" + b" " * 999, b"{}", b"[1]"])
def test_a_server_of_another_kind_is_reported(body: bytes) -> None:
    page = Response(200, "OK", {}, body)
    answers = {'management GET /models?limit=100 ""': page, 'management GET /models ""': page}
    with playing(answers) as urls, pytest.raises(MigrationError) as refused:
        running_server("TorchServe", addresses(urls), {})

    assert f"/models was answered 200 {body.decode().strip()}" in str(refused.value)


def test_another_port_than_that_of_inference_is_reported() -> None:
    answers = {'management GET /models?limit=100 ""': Response(200, "OK", {}, b'{"models": []}')}
    with playing(answers) as urls, pytest.raises(MigrationError, match=r"inference address: .*/ping: 404"):
        running_server("TorchServe", addresses(urls), {})


def test_tokens_are_for_their_port_unless_the_request_has_one() -> None:
    server = ComparedServer("TorchServe", {}, {"inference": "secret"})

    assert server.headers(Probe("", "inference", "GET", "/")) == (("Authorization", "Bearer secret"),)
    assert server.headers(Probe("", "management", "GET", "/")) == ()
    own = (("authorization", "mine"),)
    assert server.headers(Probe("", "inference", "GET", "/", own)) == own
    assert "secret" not in repr(server)


def test_nobody_listens_on_a_free_port() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert listener(free.getsockname()[1]) is None


def launch(folder: Path, script: str, **more: Any) -> Launch:
    command = ["/bin/sh", "-c", script]
    return Launch(
        "It", command, {"management": ("127.0.0.1", 1)}, folder, os.environ, folder / "output", **more
    )


def test_a_program_that_ends_is_reported_with_its_last_output(tmp_path: Path) -> None:
    with (
        pytest.raises(MigrationError, match=r"It does not start:\n.*no such thing"),
        started(launch(tmp_path, "echo no such thing; exit 1")),
    ):
        pass
    with (
        pytest.raises(MigrationError, match="It cannot be started"),
        started(Launch("It", [str(tmp_path / "absent")], {}, tmp_path, {}, tmp_path / "output")),
    ):
        pass


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_is_left_of_what_was_started(
    tmp_path: Path, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ComparedServer, "ask", lambda *_: Response(200, "OK", {}, b'{"models": []}'))
    with started(
        launch(tmp_path, "sleep 60 & echo ready; sleep 60", started_line="ready", whole=whole)
    ) as server:
        process = psutil.Process(server.pid)
        deadline = time.monotonic() + 10
        while len(children := process.children()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (server.seconds or 0) > 0

    assert [each for each in (process, *children) if each.is_running() and each.status() != "zombie"] == []
