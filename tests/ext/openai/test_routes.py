"""One list of models for clients of KServe's protocol and of OpenAI's API."""

from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from modelserver.errors import ModelNotFound, ModelServerError
from modelserver.ext.openai.routes import add_models
from modelserver.surface.api.application import Application


class Registry:
    """Two models, of which one is ready."""

    def names(self) -> list[str]:
        return ["busy", "loading"]

    def get(self, name: str, version: str | None = None):
        if name not in self.names() or version not in (None, "1.0"):
            raise ModelNotFound.named(name)
        workers = [SimpleNamespace(created=5.5)] if name == "busy" else []
        return SimpleNamespace(name=name, pool=SimpleNamespace(workers=workers))

    def is_ready(self, name: str) -> bool:
        return name == "busy"


@pytest.fixture
def client():
    app, registry = Application(), Registry()
    add_models(app, registry)  # type: ignore[arg-type]
    return TestClient(app, raise_server_exceptions=True)


@pytest.mark.parametrize("prefix", ["", "/openai"])
def test_list_has_the_fields_of_both_protocols(client, prefix):
    body = client.get(f"{prefix}/v1/models").json()

    assert body["models"] == ["busy", "loading"]
    assert body["object"] == "list"
    assert body["data"][0] == {"id": "busy", "object": "model", "created": 5, "owned_by": "modelserver"}


def test_model_has_the_fields_of_both_protocols(client):
    body = client.get("/v1/models/busy:1.0").json()

    assert (body["name"], body["ready"], body["id"], body["object"]) == ("busy", True, "busy:1.0", "model")


@pytest.mark.parametrize(("name", "status"), [("loading", 503), ("none", 404), ("busy:2", 404)])
def test_model_that_cannot_answer_is_an_error(client, name, status):
    with pytest.raises(ModelServerError) as error:
        client.get(f"/v1/models/{name}")

    assert error.value.status == status
