"""Request headers."""

from __future__ import annotations

import pytest

from modelserver_handlers.context import Headers


@pytest.mark.parametrize("name", ["X-Foo", "x-foo", "X-FOO"])
def test_lookup_in_any_case(name: str) -> None:
    """A header is found in any case, by index, get and in."""
    headers = Headers({"X-Foo": "1"})

    assert headers[name] == "1"
    assert headers.get(name) == "1"
    assert name in headers


def test_original_case_is_kept() -> None:
    """Iterating gives the names as the client wrote them."""
    assert list(Headers({"X-Foo": "1", "accept": "*/*"})) == ["X-Foo", "accept"]


def test_exact_case_wins_then_the_later() -> None:
    """Of two names that differ in case, each finds its own, and a third case the later."""
    headers = Headers({"host": {"content-type": "text/plain"}, "Host": "example.org"})

    assert headers["host"] == {"content-type": "text/plain"}
    assert headers["Host"] == "example.org"
    assert headers["HOST"] == "example.org"


def test_absent_header() -> None:
    """An absent header is None or the default for get, and a KeyError with its name for an index."""
    headers = Headers({"a": "1"})

    assert headers.get("b") is None
    assert headers.get("b", "x") == "x"
    assert "b" not in headers
    assert 3 not in headers
    with pytest.raises(KeyError, match="b"):
        headers["b"]


def test_none_is_a_value() -> None:
    """A stored None is found, not taken for absent."""
    assert Headers({"a": None}).get("A", "default") is None


def test_is_a_dict() -> None:
    """Handlers may treat it as the dict that TorchServe gives them, and copies stay case-insensitive."""
    headers = Headers({"a": "1"})
    headers["B"] = "2"

    assert headers == {"a": "1", "B": "2"}
    assert headers.copy()["b"] == "2"
