"""Requests of web pages to a server without tokens."""

from __future__ import annotations

import pytest

from modelserver.surface.auth.origins import (
    ForeignName,
    ForeignPage,
    check_host,
    check_origin,
    tells_about_models,
)

OWN = "http://localhost:8081"


def headers(origin: str | None, host: str = "localhost:8081") -> list[tuple[bytes, bytes]]:
    """The headers of a browser's request."""
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
def test_own_pages_and_other_clients_are_allowed(origin: str, host: str) -> None:
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
    """A page could otherwise read the responses of this machine's loopback under its own name."""
    with pytest.raises(ForeignName, match="use localhost"):
        check_host(headers(None, host))


def test_names_of_the_operator_are_safe() -> None:
    """A name of ``management_hosts`` may read, and its own pages may change something."""
    names = {"models.lan"}
    check_host(headers(None, "Models.LAN:8081"), names)
    check_origin("POST", headers("http://models.lan", "models.lan"), "", names)
    with pytest.raises(ForeignName):
        check_host(headers(None, "other.lan"), names)
    with pytest.raises(ForeignPage):
        check_origin("POST", headers("http://other.lan", "other.lan"), "", names)


def test_a_request_without_the_header_is_not_from_a_browser() -> None:
    """HTTP/1.0 has none."""
    check_host([(b"accept", b"*/*")])


@pytest.mark.parametrize(
    ("role", "path"),
    [
        *(("management", path) for path in ("/models", "/models/m", "/workflows", "/logging", "/token")),
        *(("management", path) for path in ("/console/events", "/recording", "/v1/models/m")),
        *(("inference", path) for path in ("/v2/repository/index", "/v2/logging")),
        ("metrics", "/metrics"),
    ],
)
def test_data_about_models_has_the_rule(role: str, path: str) -> None:
    """What needs the management token where there are tokens, and metrics."""
    assert tells_about_models({role}, "GET", path)


@pytest.mark.parametrize(
    "path", ["/ping", "/livez", "/readyz", "/v2/health/ready", "/console", "/openapi.json"]
)
@pytest.mark.parametrize("role", ["inference", "management", "metrics"])
def test_probes_and_pages_do_not_have_the_rule(role: str, path: str) -> None:
    """A probe may use any name; the console's page and descriptions tell nothing about models."""
    if (role, path) != ("inference", "/console"):
        assert not tells_about_models({role}, "GET", path)


@pytest.mark.parametrize("path", ["/predictions/m", "/v2/models/m", "/v1/models/m"])
def test_what_clients_of_models_ask_does_not_have_the_rule(path: str) -> None:
    """Proxies send predictions, and what belongs to them, on under the name that clients use."""
    assert not tells_about_models({"inference"}, "GET", path)
    assert not tells_about_models({"inference", "management"}, "GET", path)
