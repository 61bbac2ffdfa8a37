"""Requests of web pages where nobody asks for tokens."""

from __future__ import annotations

import pytest

from modelserver.auth.origins import ForeignName, ForeignPage, check_host, check_origin

OWN = "http://localhost:8081"


def headers(origin: str | None, host: str = "localhost:8081") -> list[tuple[bytes, bytes]]:
    """As a browser sends them."""
    sent = [(b"host", host.encode())]
    return sent if origin is None else [*sent, (b"origin", origin.encode())]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "localhost:8081"),
        ("http://evil.example:8081", "evil.example:8081"),
        ("http://localhost:3000", "localhost:8081"),
        ("null", "localhost:8081"),
        ("http://[", "localhost:8081"),
    ],
)
def test_pages_of_others_change_nothing(method: str, origin: str, host: str) -> None:
    """Neither another site, nor a name that was made to lead here, nor another port (F65)."""
    with pytest.raises(ForeignPage, match="may not change anything here"):
        check_origin(method, headers(origin, host), "")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_is_free(method: str) -> None:
    """Whether the page sees the answer is the browser's to decide."""
    check_origin(method, headers("http://evil.example"), "")


@pytest.mark.parametrize(
    ("origin", "host"), [(OWN, "localhost:8081"), ("http://127.0.0.1:8081", "127.0.0.1:8081")]
)
def test_own_pages_and_other_clients(origin: str, host: str) -> None:
    """The server's documentation may try requests; what is no browser sends no origin."""
    check_origin("POST", headers(origin, host), "")
    check_origin("POST", headers(None, host), "")


def test_allowed_origins() -> None:
    """One that CORS allows, or all."""
    check_origin("POST", headers("http://tool.example"), "http://tool.example")
    check_origin("POST", headers("http://tool.example"), "*")
    with pytest.raises(ForeignPage):
        check_origin("POST", headers("http://evil.example"), "http://tool.example")


@pytest.mark.parametrize(
    "host", ["localhost:8081", "127.0.0.1:8081", "[::1]:8081", "10.0.0.7", "app.localhost."]
)
def test_names_that_nobody_can_forge(host: str) -> None:
    """Loopback names and plain addresses never come from somebody's DNS."""
    check_host(headers(None, host))


@pytest.mark.parametrize(
    "host", ["evil.example:8081", "localhost.evil.example", "", "[::1", "127.0.0.1.evil.example"]
)
def test_a_name_that_was_made_to_lead_here_reads_nothing(host: str) -> None:
    """A page could otherwise read under its own name what this machine's loopback tells."""
    with pytest.raises(ForeignName, match="use localhost"):
        check_host(headers(None, host))
