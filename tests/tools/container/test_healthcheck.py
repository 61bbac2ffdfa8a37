"""The image's health check finds the server of its container and sends a request without a token."""

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from modelserver.ext.tls.certificate import load_certificate
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.run.cli import published_address
from modelserver.run.pidfile import address_file
from modelserver.tools.container.healthcheck import ask, main


class Answers(BaseHTTPRequestHandler):
    """Answers its server's ``status`` at the route that needs no token, and 400 elsewhere."""

    def do_GET(self):
        request = self.path == "/v2/health/ready" and "Authorization" not in self.headers
        self.send_response(self.server.status if request else 400)
        self.end_headers()

    def log_message(self, *args):
        pass


class UnixServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self):
        self.socket.bind(self.server_address)

    def get_request(self):
        return self.socket.accept()[0], ("", 0)


@pytest.fixture
def plain():
    """One that speaks HTTP."""
    yield from running(HTTPServer(("127.0.0.1", 0), Answers))


def running(server):
    """Serves in a thread; ready unless told otherwise."""
    server.status = 200
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def description(address, *, certificates=False):
    """What a server says about itself."""
    return {"inference": str(address), "asks_for_certificates": certificates}


def on(server, host="0.0.0.0", scheme="http"):
    """What one at this port says."""
    return description(Address(scheme, host, server.server_port))


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return address_file()


class OverIPv6(HTTPServer):
    address_family = socket.AF_INET6


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost", "::", "::1"])
def test_request_goes_to_the_servers_address(host):
    """As the settings say, IPv6 in brackets; the answer of a server that is not ready is printed."""
    kind = OverIPv6 if ":" in host else HTTPServer
    if kind is OverIPv6 and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6")
    for server in running(kind((host, 0), Answers)):
        assert ask(on(server, host)) == "ready"
        server.status = 503
        assert ask(on(server, host)) == "/v2/health/ready answers 503"


def test_request_goes_over_unix_sockets_and_tls(tmp_path):
    """Also with a certificate that nobody can verify. Where clients need one, which the check does not have,
    a handshake is enough: the server would end the connection instead of answering.
    """
    path = tmp_path / "socket"
    for _ in running(UnixServer(str(path), Answers)):
        assert ask(description(Address("unix", path=str(path)))) == "ready"

    server = HTTPServer(("127.0.0.1", 0), Answers)
    context = load_certificate(Settings(inference_address=Address("https", "127.0.0.1", 1))).server_context()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    for secured in running(server):
        assert ask(on(secured, scheme="https")) == "ready"
        secured.status = 503
        address = Address("https", "0.0.0.0", secured.server_port)
        assert ask(description(address)) == "/v2/health/ready answers 503"
        assert ask(description(address, certificates=True)) == "ready"


def test_server_without_an_answer_is_unhealthy(file, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        file.write_text(json.dumps(description(Address("http", "127.0.0.1", free.getsockname()[1]))))
        assert main() == 1
    assert "refused" in capsys.readouterr().out

    with socket.create_server(("127.0.0.1", 0)) as listener:
        file.write_text(json.dumps(description(Address("http", "127.0.0.1", listener.getsockname()[1]))))
        closing = threading.Thread(target=lambda: (got := listener.accept()[0]).recv(4096) and got.close())
        closing.start()
        assert main() == 1
        closing.join()
    assert capsys.readouterr().out == "/v2/health/ready is not answered\n"


@pytest.mark.parametrize(
    ("text", "data"), [(None, "modelserver is not currently running.\n"), ("{}", "'inference'\n")]
)
def test_without_a_server_it_is_unhealthy(file, capsys, text, data):
    if text is not None:
        file.write_text(text)

    assert main() == 1
    assert capsys.readouterr().out == data


def test_the_server_tells_its_address(file):
    settings = Settings(
        inference_address=Address("https", "0.0.0.0", 9000), tls_client_ca_file=Path("/etc/ca.pem")
    )
    with published_address(settings):
        assert json.loads(file.read_text()) == description(
            Address("https", "0.0.0.0", 9000), certificates=True
        )
    assert not file.exists()


def test_check_imports_little(plain, tmp_path):
    """It runs every 30 seconds beside models: no library of the server is imported, and no event loop."""
    (tmp_path / ".model_server.address").write_text(json.dumps(on(plain)))
    roots = os.pathsep.join(str(Path(__file__).parents[3] / name) for name in ("app", "handlers"))
    environment = {**os.environ, "PYTHONPATH": roots, "TMPDIR": str(tmp_path)}
    program = (
        "import sys\nfrom modelserver.tools.container import healthcheck\n"
        "print(healthcheck.main(), len(sys.modules), 'asyncio' in sys.modules)"
    )
    command = [sys.executable, "-S", "-c", program]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    status, modules, has_loop = output.split()[-3:]

    assert (status, has_loop) == ("0", "False")
    assert int(modules) < 150
