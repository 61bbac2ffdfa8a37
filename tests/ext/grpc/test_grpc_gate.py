import pytest
from tests.ext.grpc.calling import FakeCall

from modelserver.ext.grpc.gate import Gate, Unauthorized
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.auth.verifier import Verifier

_PREDICT = "org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
_PING = "org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping"
_LOAD = "inference.GRPCInferenceService/RepositoryModelLoad"


def call(token=None):
    return FakeCall(() if token is None else (("x", "y"), ("authorization", f"Bearer {token}")))


@pytest.fixture
def verifier():
    """Knows one token of each scope, which is called like it."""
    made = Verifier(lambda: 0.0)
    made.replace([(scope, scope.value, None) for scope in Scope])
    return made


def test_the_right_token_opens(verifier):
    """Health needs no token; a setting controls whether Ping does."""
    inference = Gate(verifier, Scope.INFERENCE, ping_token=False)
    inference.check(_PREDICT, call("inference"))
    inference.check(_LOAD, call("management"))
    Gate(verifier, Scope.MANAGEMENT, ping_token=False).check("s/RegisterModel", call("management"))

    for path in ("grpc.health.v1.Health/Check", "inference.GRPCInferenceService/ServerReady", _PING):
        inference.check(path, call())
    with pytest.raises(Unauthorized):
        Gate(verifier, Scope.INFERENCE, ping_token=True).check(_PING, call())

    Gate(None, Scope.MANAGEMENT, ping_token=True).check(_LOAD, call())


@pytest.mark.parametrize("token", [None, "management", "nonsense", "", "\u20ac"])
def test_other_tokens_are_refused(verifier, token):
    """Missing, wrong or another scope's: TorchServe's words (reference 16.2)."""
    gate = Gate(verifier, Scope.INFERENCE, ping_token=False)
    with pytest.raises(Unauthorized, match="Token Authorization failed"):
        gate.check(_PREDICT, call(token))


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "LogSettings", "TraceSetting"])
def test_the_repository_is_not_for_inference(verifier, method):
    gate = Gate(verifier, Scope.INFERENCE, ping_token=False)
    path = f"inference.GRPCInferenceService/{method}"

    gate.check(path, call("management"))
    with pytest.raises(Unauthorized):
        gate.check(path, call("inference"))
