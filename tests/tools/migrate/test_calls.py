import socket

import pytest
from tests.recorded_answers import answer_of
from tests.tools.migrate.sites import key_of, playing

from modelserver.tools.migrate.calls import Probe, Response, send


@pytest.mark.parametrize("body", [b"text", "größe".encode(), b"\x00\xff", None])
def test_answers_survive_json(body):
    answer = Response(200, "OK", {"a": "b"}, body)
    assert answer_of(answer.to_json()) == answer


def test_response_has_what_the_server_sent():
    call = Probe("", "inference", "POST", "/predictions/m", (("Content-Type", "text/plain"),), b"body")
    answer = Response(201, "Made", {"x-mine": "yes"}, b"answer")
    with playing({key_of("inference", "POST", call.path, b"body"): answer}) as urls:
        got = send(call, ("127.0.0.1", int(urls["inference"].rpartition(":")[2])))

    assert (got.status, got.reason, got.headers["x-mine"], got.body) == (201, "Made", "yes", b"answer")


@pytest.mark.parametrize("headers", [(), (("X", "a\nb"),)])
def test_a_failed_exchange_is_status_0(headers):
    """Where nobody listens, and for what cannot be sent."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        got = send(Probe("", "inference", "GET", "/", headers), closed.getsockname())

    assert (got.status, got.body) == (0, b"")
