import re
from types import SimpleNamespace

import pytest
from tests.documents import listener

from modelserver.errors import BadRequest, Conflict
from modelserver.ext.paths.own_paths import NAME, RESERVED, OwnPaths
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.registry import Registry
from modelserver.surface.inference.routes import Route, target_finder


def model(name, path, version="1.0"):
    options = ModelOptions().changed({"route": path}, "")
    return SimpleNamespace(
        name=name, version=version, options=options, replacement=None, traffic=None, failure=""
    )


class Models:
    """A registry, the paths of its models, and what finds the targets of URLs."""

    def __init__(self):
        nothing = None
        self.registry = Registry(nothing)
        self.paths = OwnPaths(self.registry)
        self.find = self.paths.finder(target_finder())

    def add(self, name, path, version="1.0"):
        added = model(name, path, version)
        self.paths.claim(added)
        self.registry.add(added)
        return added

    def route(self, url):
        target = self.find(url)
        return None if target is None else target.route


@pytest.fixture
def models():
    return Models()


def test_model_answers_at_its_path_and_below(models):
    models.add("shop", "/api/v3")
    models.add("other", None)

    assert models.route(b"/api/v3/items/5?q=1") == Route(
        "shop", url_path="items/5", protocol=NAME, root="/api/v3"
    )
    assert (
        models.route(b"/api/v3") == models.route(b"/api/v3/") == Route("shop", protocol=NAME, root="/api/v3")
    )
    assert models.route(b"/api/%763/a%2Fb") == Route("shop", url_path="a/b", protocol=NAME, root="/api/v3")
    for url in (b"/api", b"/api/v33", b"/x/api/v3", b"//api/v3", b"/", b"*", b"/a/" * 5000):
        assert models.route(url) is None
    assert models.route(b"/predictions/other") == Route("other")


def test_longest_path_counts_and_is_before_the_oldest_form_of_predictions(models):
    models.add("shop", "/api")
    models.add("admin", "/api/admin")

    routes = [models.route(url) for url in (b"/api/admin/x", b"/api/adm", b"/api/predict")]
    assert [route.model for route in routes] == ["admin", "shop", "shop"]
    assert models.route(b"/m/predict") == Route("m", query=True)


def test_path_is_free_when_its_model_is_gone(models):
    shop = models.add("shop", "/api")
    with pytest.raises(Conflict, match="route=/api belongs to the model shop already"):
        models.add("other", "/api")
    models.add("shop", "/api", "2.0")
    models.registry.remove(shop)

    assert models.route(b"/api").model == "shop"
    models.registry.remove(models.registry.get("shop", "2.0"))
    assert models.route(b"/api") is None
    models.add("other", "/api")
    assert models.route(b"/api").model == "other"


def test_path_belongs_to_a_version_that_is_being_prepared(models):
    """One with a new name and version, and one that replaces a version by another archive of that version."""
    models.registry.reserve("slow", "1.0")
    models.paths.claim(model("slow", "/api"))
    with pytest.raises(Conflict):
        models.add("other", "/api")
    assert models.route(b"/api") is None
    models.registry.release("slow", "1.0")
    models.add("other", "/api")

    before = models.add("shop", None)
    models.paths.claim(model("shop", "/shop"))
    before.replacement = SimpleNamespace(state="LOADING")
    with pytest.raises(Conflict):
        models.add("third", "/shop")
    before.replacement.state = "FAILED"
    models.add("third", "/shop")


@pytest.mark.parametrize(
    "path",
    ["", "api", "/", "/a/", "//a", "/ ", "/%20", "/ä", "/../x", "/a/.", "/?", "/a" * 9, "/" + "a" * 256, 7],
)
def test_what_is_no_path_is_refused(models, path):
    with pytest.raises(BadRequest, match="a path such as /api is needed"):
        models.add("shop", path)


@pytest.mark.parametrize("first", sorted(RESERVED))
def test_paths_of_the_server_are_refused(models, first):
    for path in (f"/{first}", f"/{first}/x", f"/{first.upper()}"):
        with pytest.raises(
            BadRequest, match=f"the server's own paths begin with /{re.escape(path.split('/')[1])};"
        ):
            models.add("shop", path)
    models.add("shop", f"/{first}2")


def test_all_paths_of_the_server_are_known():
    """At these a model would hide it."""
    nothing = object()
    app = listener("all", tokens=nothing, recorder=nothing)
    routes = app.routes
    paths = {each.path for each in routes} | {each.path for each in app.operations}
    firsts = {path.split("/")[1].lower() for path in paths if not re.match(r"/\{name\}/", path)}

    assert {each.replace("{verb:wfpredict}", "wfpredict") for each in firsts} - {""} == RESERVED - {"console"}
