from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.surface.auth.scopes import Scope, needed_scope, strictest_scope

INFERENCE = frozenset({"inference"})
MANAGEMENT = frozenset({"management"})
METRICS = frozenset({"metrics"})
SHARED = frozenset({"inference", "management", "metrics"})


def needed(
    roles: frozenset[str], path: str, method: str = "GET", *, ping_token: bool = False
) -> Scope | None:
    return needed_scope(roles, method, path, ping_token=ping_token)


@pytest.mark.parametrize(
    "path", ["/predictions/m", "/v1/models/m:predict", "/nowhere", "/", "/wfpredict/w", "/token"]
)
def test_inference_listener_needs_the_inference_token(path: str) -> None:
    """Everything on the inference address needs the inference token (reference 16.2)."""
    assert needed(INFERENCE, path) is Scope.INFERENCE


@pytest.mark.parametrize(
    "path", ["/models", "/models/m/1.0", "/workflows", "/v1/models/m", "/nowhere", "//token"]
)
def test_management_listener_needs_the_management_token(path: str) -> None:
    """Everything on the management address needs the management token (reference 16.2)."""
    assert needed(MANAGEMENT, path) is Scope.MANAGEMENT


@pytest.mark.parametrize("roles", [MANAGEMENT, SHARED])
@pytest.mark.parametrize("path", ["/token", "/token/"])
def test_renewal_needs_the_api_token(roles: frozenset[str], path: str) -> None:
    """The path of renewal needs the API token; a path or query that contains it does not (reference 16.2)."""
    assert needed(roles, path) is Scope.API
    assert needed(roles, "/models/token") is Scope.MANAGEMENT


@pytest.mark.parametrize("roles", [INFERENCE, MANAGEMENT, SHARED])
@pytest.mark.parametrize(
    "path",
    ["/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/api-description", "/ping", "/ping/"],
)
def test_open_paths(roles: frozenset[str], path: str) -> None:
    """Probes and descriptions need no token."""
    assert needed(roles, path) is None
    assert needed(roles, "/", "OPTIONS") is None
    assert needed(roles, "/", "GET") is not None


def test_ping_as_torchserve_has_it() -> None:
    """With ping_token, /ping needs the token of its listener."""
    assert needed(INFERENCE, "/ping", ping_token=True) is Scope.INFERENCE
    assert needed(SHARED, "/ping", ping_token=True) is Scope.INFERENCE
    assert needed(SHARED, "/readyz", ping_token=True) is None


def test_metrics_need_no_token_at_their_own_address() -> None:
    """Metrics need no token at an address of their own; elsewhere they need that of the address."""
    assert needed(METRICS, "/metrics") is None
    assert needed(METRICS, "/anything") is None
    assert needed(SHARED, "/metrics") is Scope.INFERENCE
    assert needed(INFERENCE | METRICS, "/metrics") is Scope.INFERENCE
    assert needed(MANAGEMENT | METRICS, "/metrics/x") is Scope.MANAGEMENT


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/predictions/m", Scope.INFERENCE),
        ("/explanations/m", Scope.INFERENCE),
        ("/v1/models", Scope.INFERENCE),
        ("/v2/models/m/infer", Scope.INFERENCE),
        ("/WFpredict/w", Scope.INFERENCE),
        ("/invocations", Scope.INFERENCE),
        ("/m/predict", Scope.INFERENCE),
        ("/m/1.0/predict", Scope.INFERENCE),
        ("/models/m/invoke", Scope.INFERENCE),
        ("/models", Scope.MANAGEMENT),
        ("/models/m", Scope.MANAGEMENT),
        ("/models/predict", Scope.MANAGEMENT),
        ("/models/m/invoke/x", Scope.MANAGEMENT),
        ("/workflows/w/predict", Scope.MANAGEMENT),
        ("//models/m", Scope.MANAGEMENT),
        ("/nowhere", Scope.MANAGEMENT),
    ],
)
def test_shared_address(path: str, scope: Scope) -> None:
    """Where inference and management share an address the path decides, the unknown is management's."""
    assert needed(SHARED, path) is scope


def test_console_page_needs_no_token_but_its_data_does() -> None:
    """Its page needs no token at the management address, all that it shows does; elsewhere it is not."""
    for path in ("/console", "/console/", "/console/static/main.js"):
        assert needed(MANAGEMENT, path) is None
        assert needed(MANAGEMENT | METRICS, path) is None
        assert needed(SHARED, path) is Scope.MANAGEMENT
        assert needed(INFERENCE, path) is Scope.INFERENCE
    for path in ("/console/events", "/console/settings", "/console/try/predictions/m", "/console/static"):
        assert needed(MANAGEMENT, path) is Scope.MANAGEMENT


@pytest.mark.parametrize("roles", [INFERENCE, MANAGEMENT, SHARED])
def test_repository_needs_the_management_token(roles: frozenset[str]) -> None:
    """Loading and unloading over V2 needs the management token, on the inference address too."""
    assert needed(roles, "/v2/repository/models/m/load", "POST") is Scope.MANAGEMENT
    assert needed(roles, "/v2/repository/index", "POST") is Scope.MANAGEMENT


@pytest.mark.parametrize("roles", [INFERENCE, SHARED])
def test_triton_settings_need_the_management_token(roles: frozenset[str]) -> None:
    """Settings of the whole server are the operator's; what clients of models need is theirs."""
    for path in ("/v2/logging", "/v2/logging/", "/v2/trace/setting", "/v2/models/m/trace/setting"):
        assert needed(roles, path, "POST") is needed(roles, path) is Scope.MANAGEMENT
    for path in ("/v2/models/m/config", "/v2/models/stats", "/v2/systemsharedmemory/region/x/register"):
        assert needed(roles, path) is Scope.INFERENCE


@given(st.text())
def test_management_is_never_less(rest: str) -> None:
    """Nothing below the paths of management is open with less than its token."""
    for path in (f"/workflows/{rest}", f"/models{rest}"):
        scope = needed(SHARED, path)
        invoked = path.rstrip("/").endswith("/invoke") and path.startswith("/models/")
        predicted = not path.startswith(("/models/", "/workflows/")) and path.rstrip("/").endswith("/predict")
        assert scope is Scope.MANAGEMENT or ((invoked or predicted) and scope is Scope.INFERENCE)


def test_unreadable_path_needs_the_strictest_token() -> None:
    """What cannot be read needs the strongest token of the listener."""
    assert strictest_scope(SHARED) is Scope.MANAGEMENT
    assert strictest_scope(INFERENCE) is Scope.INFERENCE
    assert strictest_scope(METRICS) is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/openai/v1/embeddings", "/predictions/m/v1/score"])
def test_clients_of_openai_need_the_inference_token(path: str) -> None:
    """Also where inference and management share an address."""
    assert needed(SHARED, path, "POST") is Scope.INFERENCE
