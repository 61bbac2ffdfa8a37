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


_OF_INFERENCE = """
    /predictions/m /explanations/m /v1/models /v2/models/m/infer /WFpredict/w /invocations /m/predict
    /m/1.0/predict /models/m/invoke /v1/chat/completions /openai/v1/embeddings /predictions/m/v1/score
    /metrics
"""
# Also what is unknown, and what cannot be read.
_OF_MANAGEMENT = """
    /models /models/m /models/predict /models/m/invoke/x /workflows/w/predict //models/m /nowhere
    /models/token
"""
_PAGE = "/console /console/ /console/static/main.js"
_DATA = "/console/events /console/settings /console/history /console/try/predictions/m /console/static"
_LOADING = "/v2/repository/models/m/load /v2/repository/index"
_SWITCHES = "/v2/logging /v2/logging/ /v2/trace/setting /v2/models/m/trace/setting"
_FACTS = "/v2/models/m/config /v2/models/stats /v2/systemsharedmemory/region/x/register"
# Of addresses with these roles, the paths (and methods, if others than GET) that need a token (reference
# 16.2).
NEEDED = {
    "everything at inference's address needs its token": [
        (INFERENCE, "/predictions/m /v1/models/m:predict /nowhere / /wfpredict/w /token", Scope.INFERENCE)
    ],
    "everything at management's address needs its token": [
        (MANAGEMENT, "/models /models/m/1.0 /workflows /v1/models/m", Scope.MANAGEMENT),
        (MANAGEMENT, "/nowhere //token /models/token", Scope.MANAGEMENT),
    ],
    "the path decides at a shared address": [
        (SHARED, _OF_INFERENCE, Scope.INFERENCE, "GET", "POST"),
        (SHARED, _OF_MANAGEMENT, Scope.MANAGEMENT, "GET", "POST"),
    ],
    "renewal needs the API token": [(roles, "/token /token/", Scope.API) for roles in (MANAGEMENT, SHARED)],
    "metrics need no token at their own address": [
        (METRICS, "/metrics /anything", None),
        (INFERENCE | METRICS, "/metrics", Scope.INFERENCE),
        (MANAGEMENT | METRICS, "/metrics/x", Scope.MANAGEMENT),
    ],
    "the console's page needs no token but its data does": [
        (MANAGEMENT, _PAGE, None),
        (MANAGEMENT | METRICS, _PAGE, None),
        (SHARED, _PAGE, Scope.MANAGEMENT),
        (INFERENCE, _PAGE, Scope.INFERENCE),
        (MANAGEMENT, _DATA, Scope.MANAGEMENT),
    ],
    "loading over V2 needs management's token at inference's address too": [
        (roles, _LOADING, Scope.MANAGEMENT, "POST") for roles in (INFERENCE, MANAGEMENT, SHARED)
    ],
    "Triton's settings need management's token": [
        row
        for roles in (INFERENCE, SHARED)
        for row in ((roles, _SWITCHES, Scope.MANAGEMENT, "GET", "POST"), (roles, _FACTS, Scope.INFERENCE))
    ],
}


@pytest.mark.parametrize("rows", NEEDED.values(), ids=NEEDED)
def test_path_needs_a_token_of_its_scope(rows):
    for roles, paths, scope, *methods in rows:
        for path in paths.split():
            assert {needed(roles, path, method) for method in methods or ["GET"]} == {scope}, path


def test_strictest_scope_of_an_address_is_managements():
    scopes = [*map(strictest_scope, (SHARED, INFERENCE, METRICS))]
    assert scopes == [Scope.MANAGEMENT, Scope.INFERENCE, None]


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


@given(st.text())
def test_management_is_never_less(rest):
    for path in (f"/workflows/{rest}", f"/models{rest}"):
        scope = needed(SHARED, path)
        invoked = path.rstrip("/").endswith("/invoke") and path.startswith("/models/")
        predicted = not path.startswith(("/models/", "/workflows/")) and path.rstrip("/").endswith("/predict")
        assert scope is Scope.MANAGEMENT or ((invoked or predicted) and scope is Scope.INFERENCE)
