import pytest

from modelserver.surface.auth import verifier as module
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Fingerprint, InvalidKey, Verifier


@pytest.fixture
def verifier(clock):
    made = Verifier(clock)
    made.replace(
        [
            (Scope.INFERENCE, "first-token", None),
            (Scope.INFERENCE, "second-token", clock.now + 60.0),
            (Scope.MANAGEMENT, "manager-token", None),
        ]
    )
    return made


@pytest.mark.parametrize(
    "header", [b"Bearer first-token", b"Bearer  first-token", b"Bearer\tfirst-token", b" Bearer first-token "]
)
def test_valid_header_is_accepted(verifier, header):
    assert verifier.accepts(Scope.INFERENCE, header)
    assert verifier.accepts(Scope.INFERENCE, header)


IN_PART = [b"", b"Bearer", b"Bearer ", b"first-token", b"Bearerfirst-token"]


@pytest.mark.parametrize(
    "header",
    [
        *IN_PART,
        *(scheme + b" first-token" for scheme in (b"bearer", b"BEARER", b"Basic", b"x Bearer")),
        *(b"Bearer " + token for token in (b"first-token x", b"first-toke", b"manager-token", b"\xff\xfe")),
    ],
)
def test_invalid_header_is_rejected(verifier, header):
    """Another scheme or case, a part of the token, another scope's: they open nothing (reference 16.2)."""
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    assert not verifier.accepts(Scope.INFERENCE, header)


def test_token_is_forgotten_when_it_expires(verifier, clock):
    """So is one that is replaced; nobody is let in before the first tokens are known."""
    clock.now += 59.5
    assert verifier.accepts(Scope.INFERENCE, b"Bearer second-token")
    clock.now += 0.5
    assert not verifier.accepts(Scope.INFERENCE, b"Bearer second-token")
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    verifier.replace([(Scope.INFERENCE, "third-token", None)])
    assert not verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    assert verifier.accepts(Scope.INFERENCE, b"Bearer third-token")
    assert not Verifier(clock).accepts(Scope.INFERENCE, b"Bearer third-token")


def test_hashes_are_for_another_process(verifier, clock):
    """It accepts the same tokens; hashes do not print themselves."""
    other = Verifier(clock)
    other.unpack(verifier.packed())
    assert other.refusal(Scope.INFERENCE, b"Bearer first-token") is None
    assert isinstance(other.refusal(Scope.MANAGEMENT, b"Bearer first-token"), InvalidKey)
    assert "digest" not in repr(Fingerprint.of(Scope.INFERENCE, "third-token"))


def test_a_known_header_costs_one_comparison(verifier, monkeypatch):
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    comparisons = []
    monkeypatch.setattr(module, "compare_digest", lambda a, b: comparisons.append((a, b)) or a == b)
    monkeypatch.setattr(module, "sha256", None)
    assert verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    assert len(comparisons) == 1


def test_all_tokens_are_compared(verifier, monkeypatch):
    """How long a look takes does not depend on which token is meant: all are compared, as hashes."""
    comparisons = []
    monkeypatch.setattr(module, "compare_digest", lambda a, b: comparisons.append(len(a)) or a == b)
    verifier.accepts(Scope.INFERENCE, b"Bearer first-token")
    assert comparisons == [32, 32, 32]


def test_errors_have_torchserves_words():
    """400, and other words at /token (reference 16.2)."""
    why = "Token either incorrect, expired, or not provided correctly"
    for scope, what in ((Scope.MANAGEMENT, "Authorization"), (Scope.API, "Authentication")):
        error = InvalidKey(scope)
        assert (error.status, error.type) == (400, "InvalidKeyException")
        assert error.message == f"Token {what} failed. {why}"
