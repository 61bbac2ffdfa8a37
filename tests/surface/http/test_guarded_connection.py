"""The HTTP protocol where tokens are required: what is refused, when, and what it costs."""

import pytest
from tests.surface.http.wire import Wire, head, post, settle

from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Verifier
from modelserver.surface.http.cors import Pairs

TOKEN = "Authorization: Bearer good-token"


def guarded(headers: Pairs = ()) -> Wire:
    verifier = Verifier(lambda: 0.0)
    verifier.replace([(Scope.INFERENCE, "good-token", None)])
    return Wire(verifier=verifier, roles={"inference"}, headers=headers)


@pytest.mark.parametrize("path", ["/hot", "/long", "/"])
async def test_request_without_a_token_is_refused_with_its_head(path):
    """On both ways; the refusal is logged with method and path, and nothing behind it is read (F64)."""
    wire = guarded()
    refusal = wire.send(head("Content-Length: 500", path=path))
    await settle()

    assert refusal.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"InvalidKeyException" in refusal
    assert b"\r\nx-request-id: " in refusal
    assert [each[1::3] for each in wire.responses] == [("POST", 400)]
    assert wire.responses[0][2] == path
    assert wire.send(b"x" * 500 + head(TOKEN)) == b""
    assert wire.hot.exchanges == []
    assert wire.statuses == [400]


async def test_request_with_a_token_passes_on_both_ways():
    wire = guarded()
    for _ in range(2):
        wire.send(head(TOKEN, "Content-Length: 1") + b"x")
        await wire.talk(head(TOKEN, path="/long", method="GET"))
        wire.send(head(path="/readyz", method="GET"))
        await settle()

    assert wire.statuses == [200] * 6


async def test_refused_request_takes_no_response_from_the_one_before_it():
    wire = guarded()
    wire.hot.at_once = False
    assert wire.send(head(TOKEN, "Content-Length: 1") + b"x" + post()) == b""
    wire.hot.exchanges[0].reply(200, b"y")

    assert wire.transport.written.endswith(b"y")
    assert wire.statuses == [200]
    assert wire.transport.closed


async def test_target_that_is_no_path_needs_a_token():
    assert b" 400 " in guarded().send(head(path="http://:x", method="GET"))


async def test_preflight_request_passes_where_cors_is_on():
    """It passes nowhere else (reference 4.4); refusals then have CORS's headers."""
    preflight = head("Origin: https://a", "Access-Control-Request-Method: POST", method="OPTIONS")
    assert b" 400 " in guarded().send(preflight)
    wire = guarded(((b"access-control-allow-origin", b"*"),))
    await wire.talk(preflight)
    refused = wire.send(head())

    assert wire.statuses == [200, 400]
    assert refused.count(b"access-control-allow-origin: *\r\n") == 1
