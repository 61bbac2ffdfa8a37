"""One list of models for clients of KServe's protocol and of OpenAI's API."""

from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from modelserver.engine.wire.messages import Loaded
from modelserver.errors import ModelNotFound, ModelServerError
from modelserver.ext.openai.routes import add_models
from modelserver.surface.api.application import Application


class Registry:
    """Two models, of which one is ready."""

    def names(self):
        return ["busy", "loading"]

    def get(self, name, version=None):
        if name not in self.names() or version not in (None, "1.0", "3.0"):
            raise ModelNotFound.named(name)
        workers = [SimpleNamespace(created=5.5)] if name == "busy" else []
        crew = SimpleNamespace(model=Loaded(adapters=("poet",)) if workers else None)
        return SimpleNamespace(name=name, pool=SimpleNamespace(workers=workers, crew=crew))

    def is_ready(self, name, version=None):
        return name == "busy" and version != "3.0"


@pytest.fixture
def client():
    app, registry = Application(), Registry()
    add_models(app, registry)
    return TestClient(app, raise_server_exceptions=True)


@pytest.mark.parametrize("prefix", ["", "/openai"])
def test_list_has_the_fields_of_both_protocols(client, prefix):
    body = client.get(f"{prefix}/v1/models").json()

    assert body["models"] == ["busy", "loading"]
    assert body["object"] == "list"
    common = {"object": "model", "created": 5, "owned_by": "modelserver"}
    assert body["data"][0] == {"id": "busy", **common, "parent": None}
    assert body["data"][1] == {"id": "busy/poet", **common, "parent": "busy"}
    assert body["data"][2]["id"] == "loading"


def test_model_has_the_fields_of_both_protocols(client):
    """Likewise an adapter, as a request's ``model`` names it."""
    body = client.get("/v1/models/busy:1.0").json()
    adapter = client.get("/v1/models/busy:1.0%2Fpoet").json()

    assert (body["name"], body["ready"], body["id"], body["object"]) == ("busy", True, "busy:1.0", "model")
    assert (adapter["name"], adapter["id"], adapter["parent"]) == ("busy", "busy:1.0/poet", "busy")


@pytest.mark.parametrize(
    ("name", "status"),
    [("loading", 503), ("busy:3.0", 503), ("none", 404), ("busy:2", 404), ("busy/nobody", 404)],
)
def test_model_that_cannot_answer_is_an_error(client, name, status):
    with pytest.raises(ModelServerError) as error:
        client.get(f"/v1/models/{name}")

    assert error.value.status == status
