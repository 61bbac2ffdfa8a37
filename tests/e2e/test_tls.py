import ssl
import sys
from pathlib import Path

import grpc
import httpx
import pytest
from tests.e2e.grpc_client import grpc_settings, stub
from tests.e2e.raw import connect, converse
from tests.e2e.serving import Home, Server, addresses, free_port, serving, wait_until

from modelserver.ext.grpc.messages import message

pytest.importorskip("cryptography")

sys.path.append(str(Path(__file__).parents[1] / "tls"))


from tests.surface.tls.certificates import Authority

BODY = bytes(range(256)) * 4000


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store, authority):
    """TLS on all addresses, and a loaded model: front ends for inference, the server for the others."""
    key, chain = authority.issue("server")
    settings = {
        **addresses("https"),
        "private_key_file": key,
        "certificate_file": chain,
        "load_models": "echo.mar",
        "default_workers_per_model": 1,
        "frontend_processes": 2,
        "enable_grpc_ssl": "true",
        **grpc_settings(),
    }
    with serving(Server(Home(tmp_path_factory.mktemp("tls")), model_store, settings=settings)) as started:
        yield started


@pytest.fixture(scope="module")
def client(authority):
    context = ssl.create_default_context(cafile=str(authority.file))
    with httpx.Client(verify=context, trust_env=False, timeout=20) as made:
        yield made


def address(server, name):
    return str(server.settings[f"{name}_address"])


def ping(server, credentials, side="inference"):
    """The code of a call of gRPC, which may wait until its channel is ready."""
    target = f"127.0.0.1:{server.settings[f'grpc_{side}_port']}"
    with grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target) as to:
        check = message("grpc.health.v1.HealthCheckRequest")()
        call = stub(to, "grpc.health.v1.Health").Check.future(check, timeout=10)
        return str(call.code().name)


@pytest.fixture
def trusting(authority):
    return grpc.ssl_channel_credentials(authority.file.read_bytes())


def test_every_listener_speaks_it(server, client, trusting):
    """Predictions, management, metrics and gRPC; small and large bodies; connections are kept."""
    url = address(server, "inference") + "/predictions/echo"
    wait_until(lambda: client.post(url, content=b"x").status_code == 200, "the model is ready")
    for body in (b"x", BODY, b"y"):
        assert client.post(url, content=body).content == body
    assert client.get(address(server, "management") + "/models").json()["models"]
    assert "Requests2XX" in client.get(address(server, "metrics") + "/metrics").text
    assert [ping(server, trusting, side) for side in ("inference", "management")] == ["OK"] * 2


def test_the_clear_is_refused(server, client):
    """A client that speaks plain HTTP, or nothing sensible, is cut off and harms nobody (F66)."""
    for _ in range(3):
        answer = converse(server.port_of("inference"), b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/1.1" not in answer
    assert ping(server, None) == "UNAVAILABLE"
    assert client.get(address(server, "inference") + "/ping").status_code == 200


@pytest.mark.slow  # waits until the server looks at its files
def test_changed_files_are_taken_up(server, authority):
    """Connections from then on are shown the new certificate, without a restart; a wrong pair is not."""
    key, chain = (Path(str(server.settings[f"{name}_file"])) for name in ("private_key", "certificate"))

    def serial(name):
        context = ssl.create_default_context(cafile=str(authority.file))
        with (
            connect(server.port_of(name)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            return str((connection.getpeercert() or {})["serialNumber"])

    before = serial("inference")
    new_key, new_chain = authority.issue("renewed")
    chain.write_bytes(new_chain.read_bytes())
    wait_until(lambda: "keeping the current certificate" in server.home.output(), "it looks")
    assert serial("inference") == serial("management") == before
    key.write_bytes(new_key.read_bytes())
    wait_until(lambda: serial("management") != before, "it looks again")

    wait_until(lambda: serial("inference") == serial("management") == serial("metrics"), "front ends know it")
    for side in ("inference", "management"):
        port = int(str(server.settings[f"grpc_{side}_port"]))
        assert ssl.get_server_certificate(("127.0.0.1", port)) in new_chain.read_text()
    assert server.home.output().count("keeping the current certificate") == 1


def test_keystore_serves_clients_with_certificates(start_server, authority, trusting):
    """A PKCS12 keystore serves, and only clients with a certificate are accepted, over gRPC too (F66)."""
    server = start_server(
        inference_address=f"https://127.0.0.1:{free_port()}",
        keystore=authority.keystore("mutual"),
        tls_client_ca_file=authority.file,
        enable_grpc_ssl="true",
        **grpc_settings(),
    )
    url = address(server, "inference") + "/ping"
    context = ssl.create_default_context(cafile=str(authority.file))
    with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
        httpx.get(url, verify=context, trust_env=False)
    key, chain = authority.issue("client")
    context.load_cert_chain(chain, key)
    assert httpx.get(url, verify=context, trust_env=False).status_code == 200
    assert server.management.get("/models").status_code == 200
    known = grpc.ssl_channel_credentials(authority.file.read_bytes(), key.read_bytes(), chain.read_bytes())
    assert (ping(server, known), ping(server, trusting)) == ("OK", "UNAVAILABLE")


def test_wrong_files_stop_the_start(home, model_store, authority):
    """One line on the output says which file and why; nothing is left running (F66)."""
    key, _ = authority.issue("one")
    _, chain = authority.issue("another")
    config = home.write_config(
        {**addresses("https"), "model_store": model_store, "private_key_file": key, "certificate_file": chain}
    )
    done = home.run("--start", "--ts-config", config)

    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert str(chain) in line
    assert "key values mismatch" in line
    assert home.pid() is None
