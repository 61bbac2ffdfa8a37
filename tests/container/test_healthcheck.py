"""The image's health check: it finds the server of its container and asks it without a token."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import psutil
import pytest

from modelserver.container import healthcheck
from modelserver.container.healthcheck import ask, main, server_command, settings_of
from modelserver.pidfile import pid_file
from modelserver.settings.address import Address
from modelserver.settings.settings import Settings
from modelserver.tls.certificate import load_certificate
from modelserver.tls.context import server_context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Answers(BaseHTTPRequestHandler):
    """Answers its server's ``status`` at the route that needs no token, and 400 elsewhere."""

    def do_GET(self) -> None:
        asked = self.path == "/v2/health/ready" and "Authorization" not in self.headers
        self.send_response(self.server.status if asked else 400)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


class UnixServer(HTTPServer):
    """The same on a unix socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        return self.socket.accept()[0], ("", 0)


@pytest.fixture
def plain() -> Iterator[HTTPServer]:
    """One that speaks HTTP."""
    yield from running(HTTPServer(("127.0.0.1", 0), Answers))


def running(server: HTTPServer) -> Iterator[HTTPServer]:
    """Serves in a thread; ready unless told otherwise."""
    server.status = 200  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def on(server: HTTPServer, host: str = "0.0.0.0", scheme: str = "http") -> Settings:
    """The settings of a server at this port."""
    return Settings(inference_address=Address(scheme, host, server.server_port))


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_a_ready_server_is_healthy(plain: HTTPServer, host: str) -> None:
    """At whatever address and port the settings say."""
    assert ask(on(plain, host)) == "ready"


def test_a_server_whose_models_are_not_ready_is_not(plain: HTTPServer) -> None:
    """The answer is part of what is printed."""
    plain.status = 503  # type: ignore[attr-defined]

    assert ask(on(plain)) == "/v2/health/ready answers 503"


def test_a_unix_socket_is_asked(tmp_path: Path) -> None:
    """Where the inference address is one."""
    path = tmp_path / "socket"
    for _ in running(UnixServer(str(path), Answers)):  # type: ignore[arg-type]
        assert ask(Settings(inference_address=Address("unix", path=str(path)))) == "ready"


def test_tls_is_spoken(tmp_path: Path) -> None:
    """Also with a certificate that nobody can verify; a client's own cannot be shown."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    context = server_context(load_certificate(Settings(inference_address=Address("https", "127.0.0.1", 1))))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    for secured in running(server):
        assert ask(on(secured, scheme="https")) == "ready"
    assert isinstance(context, ssl.SSLContext)


def test_a_server_that_does_not_listen_is_unhealthy(
    plain: HTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused connection fails the check, with the reason."""
    settings = on(plain)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings = Settings(inference_address=Address("http", "127.0.0.1", free.getsockname()[1]))
    monkeypatch.setattr(healthcheck, "server_command", list)
    monkeypatch.setattr(healthcheck, "settings_of", lambda _: settings)

    assert main() == 1
    assert "refused" in capsys.readouterr().out


def test_without_a_server_it_is_unhealthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No PID file, or one of a process that is no server."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = main()
    pid_file().write_text(str(os.getpid()), encoding="ascii")

    assert (first, main()) == (1, 1)
    assert capsys.readouterr().out == "modelserver is not currently running.\n" * 2


@pytest.mark.parametrize(
    "command", [["/opt/venv/bin/python", "/opt/venv/bin/modelserver"], ["python", "-m", "modelserver"]]
)
def test_settings_are_those_of_the_servers_command(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file, its flags, and the environment, which is the container's."""
    (tmp_path / "own.properties").write_text(
        "inference_address=http://0.0.0.0:9000\nenable_envvars_config=true\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    command = [*command, "--start", "--foreground", "--ts-config", "own.properties", "--models", "all"]

    assert settings_of(command).inference_address.port == 9000
    monkeypatch.setenv("TS_INFERENCE_ADDRESS", "http://0.0.0.0:9001")
    assert settings_of(command).inference_address.port == 9001


def test_the_command_is_that_of_the_pid_files_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found as ``modelserver --stop`` finds it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(healthcheck, "is_server", lambda _: True)
    pid_file().write_text(str(os.getpid()), encoding="ascii")

    assert server_command() == psutil.Process().cmdline()
