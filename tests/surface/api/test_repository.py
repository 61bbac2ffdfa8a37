"""The repository extension: who may load and unload."""

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import Address
from starlette.requests import Request

from modelserver.errors import BadRequest, MethodNotAllowed, ModelNotFound
from modelserver.models.archives.store import ModelStore
from modelserver.surface.api.repository import ModelRepository, RepositoryApi, is_near


@pytest.mark.parametrize(
    ("hosts", "near"),
    [
        (["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::1%lo"], True),
        (["10.0.0.1", "192.168.1.1", "::ffff:10.0.0.1", "fe80::1%eth0", "unix", ""], False),
    ],
)
def test_loopback_clients_are_near(hosts, near):
    """So are those of a Unix socket."""
    assert [is_near(Address(host, 1)) for host in hosts] == [near] * len(hosts)
    assert is_near(None)


def request(host: str) -> Request:
    async def receive() -> dict[str, Any]:
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


@pytest.mark.parametrize(("tells", "end"), [(False, "."), (True, ". There is none")])
async def test_what_the_store_does_not_have(tells, end):
    """The error is KServe's, and lists the models of the store if clients may know."""
    settings = SimpleNamespace(model_store=None, default_workers_per_model=0, tells_names=tells)
    registry = SimpleNamespace(names=list, builder=SimpleNamespace(store=ModelStore(None)))

    with pytest.raises(ModelNotFound) as caught:
        await ModelRepository(registry, settings).load("m")
    assert caught.value.kserve_message == f"Model with name m does not exist{end}"
