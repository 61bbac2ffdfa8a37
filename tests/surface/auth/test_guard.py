from types import SimpleNamespace

import pytest

from modelserver.surface.auth.guard import Guard
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Verifier

TOKENS = {Scope.INFERENCE: "inference-token", Scope.MANAGEMENT: "management-token", Scope.API: "api-token"}


def verifier_of_tokens() -> Verifier:
    verifier = Verifier(lambda: 0.0)
    verifier.replace((scope, token, None) for scope, token in TOKENS.items())
    return verifier


def guard(*roles: str) -> Guard:
    return Guard(verifier_of_tokens(), frozenset(roles), ping_token=False)


def passes(guarded: Guard, url: bytes, token: str | None, *, name: bytes = b"Authorization") -> bool:
    headers = [(b"Host", b"x"), (b"X-Long-Header-Name", b"Bearer no")]
    if token is not None:
        headers.append((name, f"Bearer {token}".encode()))
    return guarded.check(b"GET", url, headers) is None


@pytest.mark.parametrize("name", [b"Authorization", b"authorization", b"AUTHORIZATION"])
def test_the_header_is_recognized(name):
    assert passes(guard("inference"), b"/predictions/m?a=b", "inference-token", name=name)
    assert not passes(guard("inference"), b"/predictions/m", "management-token", name=name)
    assert not passes(guard("inference"), b"/predictions/m", None)


DISGUISES = b"/models /%6dodels /models%2Fm http://host/models /models?type=/predictions/ * \xff"


@pytest.mark.parametrize("url", [*DISGUISES.split(), b"/" + b"x" * 2000])
def test_management_cannot_be_disguised(url):
    """Percent signs, absolute URLs, queries and odd URLs make no other scope of management (F64)."""
    shared = guard("inference", "management")
    assert not passes(shared, url, "inference-token")
    assert not passes(shared, url, None)
    assert passes(shared, url, "management-token")


def test_path_of_a_model_needs_the_inference_token():
    """Unlike other paths that are not the server's own, at an address that inference and management share."""
    verifier = verifier_of_tokens()
    hot = SimpleNamespace(find=lambda url: url.startswith(b"/api") or None)
    guarded = Guard(verifier, frozenset({"inference", "management"}), hot, ping_token=False)

    assert passes(guarded, b"/api/items", "inference-token")
    assert not passes(guarded, b"/api/items", "management-token")
    assert passes(guarded, b"/nowhere", "management-token")


def test_method_and_first_header_count():
    """A route that is open to OPTIONS is not open to others, nor a good token behind a bad one."""
    guarded = guard("inference", "management")
    headers = [(b"authorization", b"Bearer x"), (b"authorization", b"Bearer inference-token")]
    assert guarded.check(b"GET", b"/predictions/m", headers) is not None
    assert guarded.check(b"OPTIONS", b"/", []) is None
    assert guarded.check(b"GET", b"/", []) is not None
    assert guarded.check(b"GET", b"/token?type=inference", [(b"authorization", b"Bearer api-token")]) is None
