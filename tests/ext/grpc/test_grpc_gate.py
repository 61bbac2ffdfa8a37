"""Tokens of calls."""

from __future__ import annotations

import pytest
from tests.ext.grpc.calling import FakeCall

from modelserver.ext.grpc.gate import Gate
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Fingerprint, InvalidKey, Verifier

_PREDICT = "org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
_PING = "org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping"
_LOAD = "inference.GRPCInferenceService/RepositoryModelLoad"


def call(token: str | None = None) -> FakeCall:
    """One with that token in its metadata."""
    return FakeCall(() if token is None else (("x", "y"), ("authorization", f"Bearer {token}")))


@pytest.fixture
def verifier() -> Verifier:
    """Knows one token of each scope, which is called like it."""
    made = Verifier(lambda: 0.0)
    made.replace([Fingerprint.of(scope, scope.value) for scope in Scope])
    return made


def test_the_right_token_opens(verifier: Verifier) -> None:
    """Each side needs its own token; the model repository needs that of management."""
    inference = Gate(verifier, Scope.INFERENCE, ping_token=False)
    inference.check(_PREDICT, call("inference"))
    inference.check(_LOAD, call("management"))
    Gate(verifier, Scope.MANAGEMENT, ping_token=False).check("s/RegisterModel", call("management"))


@pytest.mark.parametrize("token", [None, "management", "nonsense", ""])
def test_other_tokens_are_refused(verifier: Verifier, token: str | None) -> None:
    """Missing, wrong or another scope's: TorchServe's words (reference 16.2)."""
    gate = Gate(verifier, Scope.INFERENCE, ping_token=False)

    with pytest.raises(InvalidKey, match="Token Authorization failed"):
        gate.check(_PREDICT, call(token))


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "LogSettings", "TraceSetting"])
def test_the_repository_is_not_for_inference(verifier: Verifier, method: str) -> None:
    """Who may predict may not load models, nor change settings."""
    gate = Gate(verifier, Scope.INFERENCE, ping_token=False)
    path = f"inference.GRPCInferenceService/{method}"

    gate.check(path, call("management"))
    with pytest.raises(InvalidKey):
        gate.check(path, call("inference"))


def test_probes_need_none(verifier: Verifier) -> None:
    """Health needs no token; a setting controls whether Ping does."""
    gate = Gate(verifier, Scope.INFERENCE, ping_token=False)
    for path in ("grpc.health.v1.Health/Check", "inference.GRPCInferenceService/ServerReady", _PING):
        gate.check(path, call())

    with pytest.raises(InvalidKey):
        Gate(verifier, Scope.INFERENCE, ping_token=True).check(_PING, call())


def test_everybody_passes_without_tokens() -> None:
    """If no tokens are required, every call passes."""
    Gate(None, Scope.MANAGEMENT, ping_token=True).check(_LOAD, call())
