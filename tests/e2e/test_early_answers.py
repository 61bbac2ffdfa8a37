"""Answers to requests whose body nobody reads: they reach clients that send all of it before they read."""

import http.client
import ssl
import sys
from pathlib import Path

import pytest
from tests.e2e.raw import connect, post, statuses
from tests.e2e.serving import Home, Server, addresses, serving

# The module of certificates is imported from its folder.
sys.path.append(str(Path(__file__).parents[1] / "tls"))


from tests.surface.tls.certificates import Authority

BODY = b"n" * 6_400_000
CLOSES = ("Connection: close",)
EARLY = [
    *(("inference", path, ()) for path in ("/nonesuch", "/docs", "/livez", "/v2/repository/index")),
    *(("inference", path, ()) for path in ("/predictions/nonesuch", "/v1/models", "/metrics")),
    *(("inference", path, CLOSES) for path in ("/ping", "/nonesuch")),
    *(("management", path, ()) for path in ("/nonesuch", "/docs", "/models/nonesuch", "/api-description")),
    *(("metrics", path, lines) for path in ("/nonesuch", "/metrics") for lines in ((), CLOSES)),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


# Another server.
@pytest.fixture(scope="module", params=["http", pytest.param("https", marks=pytest.mark.slow)])
def server(request, tmp_path_factory, model_store, authority):
    """Without TLS and tokens, or with both; front ends answer for inference, the server for the others."""
    settings = {"frontend_processes": 2}
    if request.param == "https":
        key, chain = authority.issue("server")
        settings |= {"private_key_file": key, "certificate_file": chain, "token_authorization": "always"}
        settings |= addresses("https")
    with serving(Server(Home(tmp_path_factory.mktemp("early")), model_store, settings=settings)) as started:
        yield started


def reach(server, authority, role):
    connection = connect(server.port_of(role))
    if "private_key_file" not in server.settings:
        return connection
    context = ssl.create_default_context(cafile=str(authority.file))
    return context.wrap_socket(connection, server_hostname="localhost")


@pytest.mark.parametrize(("role", "path", "lines"), EARLY)
def test_an_early_answer_is_whole(server, authority, role, path, lines):
    """A client that sends a large body to the end gets the answer that was written meanwhile."""
    with reach(server, authority, role) as connection:
        connection.sendall(post(path, BODY, *lines))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        body = answer.read()

    is_good = path in {"/ping", "/metrics", "/api-description"} and answer.status == 200
    # Tokens are refused with 400, as by TorchServe; the list of models is OpenAI's, too.
    of_tokens = {401} if path == "/v1/models" else {400}
    refused = of_tokens if "token_authorization" in server.settings else {404, 405, 413}
    assert is_good or answer.status in {404, 405} | refused, answer.status
    assert len(body) == int(answer.headers["content-length"])


def test_answers_before_an_error_are_whole(server, authority):
    """So are those to requests in a row, of which one in the middle closes the connection."""
    row = post("/ping") * 3 + post("/nonesuch", BODY) + post("/ping") * 3
    with reach(server, authority, "inference") as connection:
        connection.sendall(row)
        received = b""
        while b"connection: close\r\n" not in received and (data := connection.recv(1 << 16)):
            received += data

    # A refused token ends the connection behind the answers before it.
    assert statuses(received) == [200] * 3 + [404] * ("token_authorization" not in server.settings)
