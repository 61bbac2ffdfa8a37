from __future__ import annotations

import pytest

from modelserver.models.settings.settings import Settings
from modelserver.surface.http.cors import Cors, is_preflight

ORIGIN = b"access-control-allow-origin"
METHODS = b"access-control-allow-methods"
HEADERS = b"access-control-allow-headers"


def test_off_by_default() -> None:
    """Without a key no answer has a header of it (F65)."""
    assert Cors.of(Settings()) is None


def test_each_key_has_its_header() -> None:
    """The values are said as they are set; keys that are not set say nothing (reference 4.4)."""
    assert Cors.of(Settings(cors_allowed_origin="*")) == Cors(((ORIGIN, b"*"),))
    given = Settings(
        cors_allowed_origin="https://a.example", cors_allowed_methods="GET, POST", cors_allowed_headers="x-y"
    )
    cors = Cors.of(given)
    assert cors is not None
    assert cors.pairs == ((ORIGIN, b"https://a.example"), (METHODS, b"GET, POST"), (HEADERS, b"x-y"))
    assert cors.lines(b"").decode() == (
        "access-control-allow-origin: https://a.example\r\n"
        "access-control-allow-methods: GET, POST\r\n"
        "access-control-allow-headers: x-y\r\n"
    )


def test_what_is_there_stays() -> None:
    """A handler's own header counts, whatever its spelling: browsers refuse two (reference 4.4)."""
    cors = Cors(((ORIGIN, b"*"), (METHODS, b"GET")))

    assert (
        cors.lines(b"x: y\r\nAccess-Control-Allow-Origin: https://b\r\n")
        == b"access-control-allow-methods: GET\r\n"
    )
    assert cors.missing([b"Access-Control-Allow-Methods"]) == [(ORIGIN, b"*")]


def test_a_value_begins_no_other_header() -> None:
    """Line ends in a setting are spaces in the header (F13)."""
    cors = Cors.of(Settings(cors_allowed_origin="*\r\nset-cookie: x"))

    assert cors == Cors(((ORIGIN, b"*  set-cookie: x"),))


@pytest.mark.parametrize(
    ("method", "names", "expected"),
    [
        ("OPTIONS", [b"Origin", b"Access-Control-Request-Method"], True),
        ("OPTIONS", [b"origin", b"host", b"access-control-request-method"], True),
        ("OPTIONS", [b"origin"], False),
        ("OPTIONS", [], False),
        ("POST", [b"origin", b"access-control-request-method"], False),
    ],
)
def test_preflights(method: str, names: list[bytes], expected: bool) -> None:
    """Browsers ask with OPTIONS, their origin and the method they would use."""
    assert is_preflight(method, [(name, b"x") for name in names]) is expected
