from types import SimpleNamespace

import pytest
from starlette.requests import Request

from modelserver.errors import BadRequest, MethodNotAllowed
from modelserver.ext.repository.routes import RepositoryApi


def request(host):
    async def receive():
        return {"type": "http.request", "body": b'{"parameters": {"own": 1}}', "more_body": False}

    return Request({"type": "http", "client": (host, 1), "headers": []}, receive)


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize(
    ("host", "everybody", "model_api", "allowed"),
    [
        ("127.0.0.1", False, True, True),
        ("10.0.0.1", False, True, False),
        ("10.0.0.1", True, True, True),
        ("127.0.0.1", True, False, False),
    ],
)
async def test_who_may_change_models(verb, host, everybody, model_api, allowed):
    """Where only inference is served, clients on this machine; nobody without the model API."""
    settings = SimpleNamespace(enable_model_api=model_api, model_store=None)
    registry = SimpleNamespace(names=list)
    api = RepositoryApi(registry, settings, everybody=everybody)

    with pytest.raises(BadRequest if allowed else MethodNotAllowed):
        await getattr(api, verb)(request(host), "m")
