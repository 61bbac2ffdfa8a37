from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver.surface.auth import verifier as module
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Fingerprint, InvalidKey, Verifier

if TYPE_CHECKING:
    from tests.surface.auth.conftest import Clock


@pytest.fixture
def verifier(clock: Clock) -> Verifier:
    made = Verifier(clock)
    made.replace(
        [
            Fingerprint.of(Scope.INFERENCE, "first-token"),
            Fingerprint.of(Scope.INFERENCE, "second-token", expires=clock.now + 60.0),
            Fingerprint.of(Scope.MANAGEMENT, "manager-token"),
        ]
    )
    return made


@pytest.mark.parametrize(
    "header", [b"Bearer first-token", b"Bearer  first-token", b"Bearer\tfirst-token", b" Bearer first-token "]
)
def test_valid_header_is_accepted(verifier: Verifier, header: bytes) -> None:
    """Scheme, white space, token; spaces around a header's value are not part of it."""
    assert verifier.accepts(Scope.INFERENCE, header)
    assert verifier.accepts(Scope.INFERENCE, header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"bearer first-token",
        b"BEARER first-token",
        b"Basic first-token",
        b"first-token",
        b"Bearerfirst-token",
        b"Bearer first-token x",
        b"Bearer first-toke",
        b"Bearer manager-token",
        b"Bearer \xff\xfe",
        b"x Bearer first-token",
    ],
)
def test_invalid_header_is_rejected(verifier: Verifier, header: bytes) -> None:
    """Another scheme or case, a part of the token, another scope's: they open nothing (reference 16.2)."""
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    assert not verifier.accepts(Scope.INFERENCE, header)


def test_several_are_valid_at_once(verifier: Verifier) -> None:
    """While tokens are rotated, the old and the new one are good."""
    assert verifier.accepts(Scope.INFERENCE, b"Bearer second-token")
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")


def test_token_expires(verifier: Verifier, clock: Clock) -> None:
    """A token is good until its time, and also a remembered header is no longer; others stay good."""
    clock.now += 59.5
    assert verifier.accepts(Scope.INFERENCE, b"Bearer second-token")
    clock.now += 0.5
    assert not verifier.accepts(Scope.INFERENCE, b"Bearer second-token")
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")


def test_replaced_tokens_are_forgotten(verifier: Verifier) -> None:
    """The header that was good last is good no more once its token is replaced."""
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    verifier.replace([Fingerprint.of(Scope.INFERENCE, "third-token")])
    assert not verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    assert verifier.accepts(Scope.INFERENCE, b"Bearer third-token")


def test_no_tokens_open_nothing(clock: Clock) -> None:
    """A front end that was not told of tokens yet lets nobody in."""
    assert not Verifier(clock).accepts(Scope.INFERENCE, b"Bearer x")


def test_a_known_header_costs_one_comparison(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same header again is compared once, and neither parsed nor hashed."""
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    comparisons = []
    monkeypatch.setattr(module, "compare_digest", lambda a, b: comparisons.append((a, b)) or a == b)
    monkeypatch.setattr(module, "sha256", None)
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    assert len(comparisons) == 1


def test_all_tokens_are_compared(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a look takes does not depend on which token is meant: all are compared, as hashes."""
    comparisons = []
    monkeypatch.setattr(module, "compare_digest", lambda a, b: comparisons.append(len(a)) or a == b)
    verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    assert comparisons == [32, 32, 32]


@pytest.mark.parametrize("header", ["Bearer manager-token", b"Bearer manager-token"])
def test_grpc_metadata_is_checked_alike(verifier: Verifier, header: str | bytes) -> None:
    """gRPC metadata, text or bytes, are checked by the same code."""
    verifier.authorize(Scope.MANAGEMENT, header)
    for wrong in (None, "", "Bearer x", "Bearer \u20ac"):
        with pytest.raises(InvalidKey) as caught:
            verifier.authorize(Scope.MANAGEMENT, wrong)
        assert caught.value.message == (
            "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
        )


def test_error_has_the_words_of_torchserve() -> None:
    """The body is TorchServe's: 400, and other words at /token (reference 16.2)."""
    error = InvalidKey(Scope.API)
    assert (error.status, error.type) == (400, "InvalidKeyException")
    assert error.message == (
        "Token Authentication failed. Token either incorrect, expired, or not provided correctly"
    )


def test_fingerprint_prints_no_hash() -> None:
    """The text of a fingerprint has no hash."""
    assert (
        repr(Fingerprint.of(Scope.API, "secret-token"))
        == "Fingerprint(scope=<Scope.API: 'API'>, expires=None)"
    )
