"""The image's health check: it finds the server of its container and asks it without a token."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelserver.ext.container.healthcheck import ask, main
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.run.cli import told_address
from modelserver.run.pidfile import address_file
from modelserver.surface.tls.certificate import load_certificate
from modelserver.surface.tls.context import server_context

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def told(address: Address, *, certificates: bool = False) -> dict[str, object]:
    """What a server says about itself."""
    return {"inference": str(address), "asks_for_certificates": certificates}


def on(server: HTTPServer, host: str = "0.0.0.0", scheme: str = "http") -> dict[str, object]:
    """What one at this port says."""
    return told(Address(scheme, host, server.server_port))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it says so."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return address_file()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_a_ready_server_is_healthy(plain: HTTPServer, host: str) -> None:
    """At whatever address and port the settings say."""
    assert ask(on(plain, host)) == "ready"


class OverIPv6(HTTPServer):
    address_family = socket.AF_INET6


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6")
@pytest.mark.parametrize("host", ["::", "::1"])
def test_a_server_at_ipv6_addresses_is_asked(host: str) -> None:
    """The address is in brackets there."""
    for server in running(OverIPv6((host, 0), Answers)):
        assert ask(on(server, host)) == "ready"


def test_a_server_whose_models_are_not_ready_is_not(plain: HTTPServer) -> None:
    """The answer is part of what is printed."""
    plain.status = 503  # type: ignore[attr-defined]

    assert ask(on(plain)) == "/v2/health/ready answers 503"


def test_a_unix_socket_is_asked(tmp_path: Path) -> None:
    """Where the inference address is one."""
    path = tmp_path / "socket"
    for _ in running(UnixServer(str(path), Answers)):  # type: ignore[arg-type]
        assert ask(told(Address("unix", path=str(path)))) == "ready"


def test_tls_is_spoken(tmp_path: Path) -> None:
    """Also with a certificate that nobody can verify; a client's own cannot be shown."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    context = server_context(load_certificate(Settings(inference_address=Address("https", "127.0.0.1", 1))))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    for secured in running(server):
        assert ask(on(secured, scheme="https")) == "ready"
    assert isinstance(context, ssl.SSLContext)


def test_a_handshake_is_enough_where_clients_need_certificates() -> None:
    """It has none to show: the server would end the connection instead of answering."""
    server = HTTPServer(("127.0.0.1", 0), Answers)
    context = server_context(load_certificate(Settings(inference_address=Address("https", "127.0.0.1", 1))))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    for secured in running(server):
        secured.status = 503  # type: ignore[attr-defined]
        address = Address("https", "0.0.0.0", secured.server_port)
        assert ask(told(address, certificates=True)) == "ready"
        assert ask(told(address)) == "/v2/health/ready answers 503"


def test_a_server_that_does_not_listen_is_unhealthy(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused connection fails the check, with the reason."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        file.write_text(json.dumps(told(Address("http", "127.0.0.1", free.getsockname()[1]))))
        assert main() == 1
    assert "refused" in capsys.readouterr().out


def test_one_that_says_nothing_is_unhealthy(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As is one that closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        file.write_text(json.dumps(told(Address("http", "127.0.0.1", listener.getsockname()[1]))))
        closing = threading.Thread(target=lambda: (got := listener.accept()[0]).recv(4096) and got.close())
        closing.start()
        assert main() == 1
        closing.join()
    assert capsys.readouterr().out == "/v2/health/ready is not answered\n"


@pytest.mark.parametrize(
    ("text", "said"), [(None, "modelserver is not currently running.\n"), ("{}", "'inference'\n")]
)
def test_without_a_server_it_is_unhealthy(
    file: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    """No file, or one that nobody can read."""
    if text is not None:
        file.write_text(text)

    assert main() == 1
    assert capsys.readouterr().out == said


def test_the_server_tells_its_address(file: Path) -> None:
    """That of its settings, wherever they are from, as long as it runs."""
    settings = Settings(
        inference_address=Address("https", "0.0.0.0", 9000), tls_client_ca_file=Path("/etc/ca.pem")
    )
    with told_address(settings):
        assert json.loads(file.read_text()) == told(Address("https", "0.0.0.0", 9000), certificates=True)
    assert not file.exists()


def test_it_costs_little(plain: HTTPServer, tmp_path: Path) -> None:
    """It runs every 30 seconds, beside models: a tenth of a second of processor time at most."""
    (tmp_path / ".model_server.address").write_text(json.dumps(on(plain)))
    roots = os.pathsep.join(str(Path(__file__).parents[3] / name) for name in ("app", "handlers"))
    environment = {**os.environ, "PYTHONPATH": roots, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "modelserver.ext.container.healthcheck"]
    costs = []
    for _ in range(5):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        costs.append(used.ru_utime + used.ru_stime)

    assert min(costs) < 0.1
