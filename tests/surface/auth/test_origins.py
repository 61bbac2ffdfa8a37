import pytest

from modelserver.surface.auth import origins

OWN = "http://localhost:8081"


def headers(origin: str | None, host: str = "localhost:8081") -> list[tuple[bytes, bytes]]:
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
def test_pages_of_others_change_nothing(method, origin, host):
    """Neither another site, nor a name that was made to lead here, nor another port (F65)."""
    for allowed in ("", "http://tool.example"):
        with pytest.raises(origins.ForeignPage, match="may not change anything here"):
            origins.check_origin(method, headers(origin, host), allowed)


@pytest.mark.parametrize(
    ("method", "origin", "host", "allowed"),
    [
        ("POST", OWN, "localhost:8081", ""),
        ("POST", "http://127.0.0.1:8081", "127.0.0.1:8081", ""),
        ("POST", None, "localhost:8081", ""),
        ("POST", "http://tool.example", "localhost:8081", "http://tool.example"),
        ("POST", "http://tool.example", "localhost:8081", "*"),
        *((method, "http://evil.example", "localhost:8081", "") for method in ("GET", "HEAD", "OPTIONS")),
    ],
)
def test_own_and_allowed_pages_other_clients_and_reading_are_free(method, origin, host, allowed):
    origins.check_origin(method, headers(origin, host), allowed)


@pytest.mark.parametrize(
    "host", ["localhost:8081", "127.0.0.1:8081", "[::1]:8081", "10.0.0.7", "app.localhost."]
)
def test_names_that_nobody_can_forge(host):
    """Loopback names and plain addresses never come from somebody's DNS; HTTP/1.0 has no header for it."""
    origins.check_host(headers(None, host))
    origins.check_host([(b"accept", b"*/*")])


@pytest.mark.parametrize(
    "host", ["evil.example:8081", "localhost.evil.example", "", "[::1", "127.0.0.1.evil.example"]
)
def test_a_name_that_was_made_to_lead_here_reads_nothing(host):
    """A page could otherwise read the responses of this machine's loopback under its own name."""
    with pytest.raises(origins.ForeignName, match="use localhost"):
        origins.check_host(headers(None, host))


def test_names_of_the_operator_are_safe():
    """A name of ``management_hosts`` may read, and its own pages may change something."""
    names = {"models.lan"}
    origins.check_host(headers(None, "Models.LAN:8081"), names)
    origins.check_origin("POST", headers("http://models.lan", "models.lan"), "", names)
    with pytest.raises(origins.ForeignName):
        origins.check_host(headers(None, "other.lan"), names)
    with pytest.raises(origins.ForeignPage):
        origins.check_origin("POST", headers("http://other.lan", "other.lan"), "", names)


@pytest.mark.parametrize(
    ("role", "paths", "has_it"),
    [
        ("management", "/models /models/m /workflows /logging /token /v1/models/m", True),
        ("management", "/console/events /recording", True),
        ("inference", "/v2/repository/index /v2/logging", True),
        ("metrics", "/metrics", True),
        ("inference", "/ping /livez /readyz /v2/health/ready /openapi.json", False),
        ("management", "/ping /livez /readyz /v2/health/ready /openapi.json /console", False),
        ("metrics", "/ping /livez /readyz /v2/health/ready /openapi.json /console", False),
        ("inference", "/predictions/m /v2/models/m /v1/models/m", False),
    ],
)
def test_data_about_models_has_the_rule(role, paths, has_it):
    """Probes may use any name, pages tell nothing about models, proxies pass on the name that clients use."""
    for path in paths.split():
        assert origins.tells_about_models({role}, "GET", path) is has_it, path


def test_data_of_clients_does_not_have_the_rule_at_a_shared_address():
    for path in ("/predictions/m", "/v2/models/m", "/v1/models/m"):
        assert not origins.tells_about_models({"inference", "management"}, "GET", path)
