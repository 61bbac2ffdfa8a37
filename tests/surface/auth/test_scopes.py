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
    ("roles", "paths", "scope"),
    [
        (INFERENCE, "/predictions/m /v1/models/m:predict /nowhere / /wfpredict/w /token", Scope.INFERENCE),
        (MANAGEMENT, "/models /models/m/1.0 /workflows /v1/models/m /nowhere //token", Scope.MANAGEMENT),
    ],
)
def test_listener_needs_its_token_for_everything(roles, paths, scope):
    """As in TorchServe (reference 16.2)."""
    assert {needed(roles, path) for path in paths.split()} == {scope}


@pytest.mark.parametrize("roles", [MANAGEMENT, SHARED])
@pytest.mark.parametrize("path", ["/token", "/token/"])
def test_renewal_needs_the_api_token(roles, path):
    """The path of renewal needs the API token; a path or query that contains it does not (reference 16.2)."""
    assert needed(roles, path) is Scope.API
    assert needed(roles, "/models/token") is Scope.MANAGEMENT


@pytest.mark.parametrize("roles", [INFERENCE, MANAGEMENT, SHARED])
@pytest.mark.parametrize(
    "path",
    ["/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/api-description", "/ping", "/ping/"],
)
def test_open_paths_need_no_token(roles, path):
    """With ``ping_token``, /ping needs the token of its listener."""
    assert needed(roles, path) is None
    assert needed(roles, "/", "OPTIONS") is None
    assert needed(roles, "/", "GET") is not None
    assert needed(roles, "/readyz", ping_token=True) is None
    assert needed(roles, "/ping", ping_token=True) is strictest_scope(roles & INFERENCE or roles)


def test_metrics_need_no_token_at_their_own_address():
    assert needed(METRICS, "/metrics") is None
    assert needed(METRICS, "/anything") is None
    assert needed(SHARED, "/metrics") is Scope.INFERENCE
    assert needed(INFERENCE | METRICS, "/metrics") is Scope.INFERENCE
    assert needed(MANAGEMENT | METRICS, "/metrics/x") is Scope.MANAGEMENT


_OF_INFERENCE = """
    /predictions/m /explanations/m /v1/models /v2/models/m/infer /WFpredict/w /invocations /m/predict
    /m/1.0/predict /models/m/invoke /v1/chat/completions /openai/v1/embeddings /predictions/m/v1/score
"""
_OF_MANAGEMENT = """
    /models /models/m /models/predict /models/m/invoke/x /workflows/w/predict //models/m /nowhere
"""


@pytest.mark.parametrize(
    ("paths", "scope"), [(_OF_INFERENCE, Scope.INFERENCE), (_OF_MANAGEMENT, Scope.MANAGEMENT)]
)
def test_path_decides_at_a_shared_address(paths, scope):
    """What is unknown is management's, and what cannot be read."""
    for path in paths.split():
        assert needed(SHARED, path) is needed(SHARED, path, "POST") is scope, path
    assert strictest_scope(SHARED) is Scope.MANAGEMENT
    assert strictest_scope(INFERENCE) is Scope.INFERENCE
    assert strictest_scope(METRICS) is None


def test_console_page_needs_no_token_but_its_data_does():
    for path in ("/console", "/console/", "/console/static/main.js"):
        assert needed(MANAGEMENT, path) is None
        assert needed(MANAGEMENT | METRICS, path) is None
        assert needed(SHARED, path) is Scope.MANAGEMENT
        assert needed(INFERENCE, path) is Scope.INFERENCE
    for path in (
        "/console/events",
        "/console/settings",
        "/console/history",
        "/console/try/predictions/m",
        "/console/static",
    ):
        assert needed(MANAGEMENT, path) is Scope.MANAGEMENT


@pytest.mark.parametrize("roles", [INFERENCE, MANAGEMENT, SHARED])
def test_repository_needs_the_management_token(roles):
    """Loading and unloading over V2 needs the management token, on the inference address too."""
    assert needed(roles, "/v2/repository/models/m/load", "POST") is Scope.MANAGEMENT
    assert needed(roles, "/v2/repository/index", "POST") is Scope.MANAGEMENT


@pytest.mark.parametrize("roles", [INFERENCE, SHARED])
def test_triton_settings_need_the_management_token(roles):
    for path in ("/v2/logging", "/v2/logging/", "/v2/trace/setting", "/v2/models/m/trace/setting"):
        assert needed(roles, path, "POST") is needed(roles, path) is Scope.MANAGEMENT
    for path in ("/v2/models/m/config", "/v2/models/stats", "/v2/systemsharedmemory/region/x/register"):
        assert needed(roles, path) is Scope.INFERENCE


@given(st.text())
def test_management_is_never_less(rest):
    for path in (f"/workflows/{rest}", f"/models{rest}"):
        scope = needed(SHARED, path)
        invoked = path.rstrip("/").endswith("/invoke") and path.startswith("/models/")
        predicted = not path.startswith(("/models/", "/workflows/")) and path.rstrip("/").endswith("/predict")
        assert scope is Scope.MANAGEMENT or ((invoked or predicted) and scope is Scope.INFERENCE)
