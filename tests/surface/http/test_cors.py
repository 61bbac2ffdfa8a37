import pytest

from modelserver.models.settings.settings import Settings
from modelserver.surface.http.cors import Cors, configured_pairs, is_preflight

ORIGIN = b"access-control-allow-origin"
METHODS = b"access-control-allow-methods"
HEADERS = b"access-control-allow-headers"


@pytest.mark.parametrize(
    ("settings", "pairs"),
    [
        ({}, ()),
        ({"cors_allowed_origin": "*"}, ((ORIGIN, b"*"),)),
        ({"cors_allowed_origin": "*\r\nset-cookie: x"}, ((ORIGIN, b"*  set-cookie: x"),)),
        (
            {"cors_allowed_methods": "GET, POST", "cors_allowed_headers": "x-y"},
            ((METHODS, b"GET, POST"), (HEADERS, b"x-y")),
        ),
    ],
    ids=["off", "origin", "line ends", "others"],
)
def test_each_setting_has_its_header(settings, pairs):
    """Line ends of its value are spaces (F13); without a setting there is none (reference 4.4, F65)."""
    assert configured_pairs(Settings(**settings)) == pairs  # type: ignore[arg-type]


def test_header_of_a_handler_stays():
    """This holds for any spelling, as browsers refuse two headers (reference 4.4)."""
    cors = Cors(((ORIGIN, b"*"), (METHODS, b"GET")))

    assert cors.lines(b"x: y\r\nAccess-Control-Allow-Origin: https://b\r\n") == METHODS + b": GET\r\n"
    assert cors.missing([b"Access-Control-Allow-Methods"]) == [(ORIGIN, b"*")]


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
def test_preflight_has_method_and_headers_of_browsers(method, names, expected):
    """OPTIONS, their origin and the method they would use."""
    assert is_preflight(method, [(name, b"x") for name in names]) is expected
