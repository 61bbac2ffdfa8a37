import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.surface.inference.routes import Route, parse_route, target_finder


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/predictions/m", Route("m")),
        ("/predictions/m/", Route("m")),
        ("/predictions/m/1.0", Route("m", "1.0")),
        ("/predictions/m/1.0/v1/chat/completions", Route("m", "1.0", "v1/chat/completions")),
        ("/explanations/m", Route("m", explain=True)),
        ("/explanations/m/2/x", Route("m", "2", "x", explain=True)),
        ("/v1/models/m:predict", Route("m", protocol="v1")),
        ("/v1/models/m:explain/", Route("m", explain=True, protocol="v1")),
        ("/v2/models/m/infer", Route("m", protocol="v2")),
        ("/v2/models/a b/versions/1.0/infer/", Route("a b", "1.0", protocol="v2")),
        ("/v2/models/m/explain", Route("m", explain=True, protocol="v2")),
        ("/invocations", Route("", query=True)),
        ("/models/m/invoke", Route("m", query=True)),
        ("/m/predict", Route("m", query=True)),
        ("/m/1.0/predict", Route("m", "1.0", query=True)),
        ("/predictions/predict", Route("predict")),
        ("/predictions/a b", Route("a b")),
    ],
)
def test_path_leads_to_its_model_and_version(path, route):
    """Every path in the reference's table selects its model and version (reference 6.1)."""
    assert parse_route(path) == route


_OTHERS = """
    / // /predictions /predictions/ /predictions//1.0 /explanations /Predictions/m
    /v1/models /v1/models/m /v1/models/m:load /v1/models/:predict /v1/models/m:predict:predict
    /v1/models/predict
    /v2/predict /v2/models/predict /v2/models/m /v2/models//infer /v2/models/m/versions//infer
    /v2/models/m/versions/1/ready /v2/models/m/infer/more
    /models/predict /models/m /models/m/predict /models/m/1.0 /models//invoke /models/m/1.0/invoke
    /predict //predict //m/predict /a/b/c/predict /ping /workflows/predict /metrics
"""


@pytest.mark.parametrize("path", ["", *_OTHERS.split()])
def test_other_paths_are_not_inference(path):
    """Management paths, also of a model called `predict`, and paths without a model are none (F12)."""
    assert parse_route(path) is None


def test_paths_of_further_protocols_come_first():
    find = target_finder([("letters", r"/(?i:letters)/(?P<model>[^/]+)(?:/(?P<version>.+))?")])
    routes = [find(path) for path in (b"/Letters/m/2", b"/letters/m", b"/predictions/m", b"/letters")]

    letters = [Route("m", "2", protocol="letters"), Route("m", protocol="letters")]
    assert [target and target.route for target in routes] == [*letters, Route("m"), None]
    assert [letters[1].template, Route("m").template] == ["/letters/{name}", "/predictions/{name}"]


@given(st.text(max_size=40).map(lambda text: "/" + text) | st.lists(st.text(max_size=4)).map("/".join))
def test_any_path_has_a_route_or_none(path):
    """No path raises, and only the unnamed form of SageMaker has no model (F12, F70)."""
    route = parse_route(path)

    if route is not None:
        assert route.model or path.rstrip("/") == "/invocations"
