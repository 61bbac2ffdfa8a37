from pathlib import Path

import pytest

from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.surface.auth.policy import notice, open_addresses, wants_tokens

OPEN = Address("http", "0.0.0.0", 8081)
CWD = Path("/srv")


def notices(environ: dict[str, str] | None = None, **settings) -> list[str]:
    return list(notice(Settings(**settings), environ or {}, CWD))


def test_loopback_needs_no_tokens():
    """With every listener on loopback or a unix socket there are none, and no message (design 7)."""
    for settings in (
        Settings(),
        Settings(inference_address=Address("unix", path="/run/x.sock")),
        Settings(metrics_address=OPEN, enable_metrics_api=False),
    ):
        assert not wants_tokens(settings, {})
    assert not open_addresses(Settings(grpc_management_address="localhost"))
    assert notices() == []


@pytest.mark.parametrize("which", ["inference_address", "management_address", "metrics_address"])
def test_an_open_address_needs_tokens(which):
    """One listener off loopback turns tokens on for all (F63), one of gRPC too (CVE-2024-35199)."""
    assert wants_tokens(Settings(**{which: OPEN}), {})
    assert wants_tokens(Settings(grpc_inference_address="0.0.0.0"), {})


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        ({"token_authorization": "always"}, {}),
        ({"token_file": Path("/run/secrets/tokens")}, {}),
        ({}, {"MODELSERVER_INFERENCE_TOKEN": "x" * 8}),
    ],
)
def test_settings_can_turn_them_on(settings, environ):
    """On loopback too, as TorchServe always has them, or by giving tokens; the switch turns them off."""
    assert wants_tokens(Settings(**settings), environ)
    assert not wants_tokens(Settings(disable_token_authorization=True, **settings), environ)


def test_the_start_says_where_tokens_are():
    assert notices(management_address=OPEN) == [
        (
            "Token authorization is on, since http://0.0.0.0:8081 is open to other machines; "
            "tokens: they are in /srv/key_file.json"
        ),
        "Warning: tokens are sent unencrypted to http://0.0.0.0:8081: use https, or a proxy that does.",
    ]
    (line,) = notices({"MODELSERVER_API_TOKEN": "secret-token"}, token_file=Path("/run/tokens"))
    assert line == (
        "Token authorization is on, since tokens were given; tokens: those given "
        "(MODELSERVER_API_TOKEN, token_file /run/tokens), and for the rest /srv/key_file.json"
    )


def test_the_start_says_what_is_open():
    """Without tokens, addresses that others reach are warned of (F63)."""
    assert notices(management_address=OPEN, disable_token_authorization=True) == [
        "Warning: token authorization is off: anyone who can reach http://0.0.0.0:8081 may use it."
    ]


def test_the_start_says_that_a_certificate_is_missing():
    (line,) = notices(inference_address=Address("https", "127.0.0.1", 8443))
    assert line == "Warning: no certificate is configured: https uses one that clients cannot verify."
    assert notices(inference_address=Address("https", "127.0.0.1", 8443), keystore=Path("x.p12")) == []
