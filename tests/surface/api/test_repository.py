"""The models of the store."""

from types import SimpleNamespace

import pytest
from starlette.datastructures import Address

from modelserver.errors import ModelNotFound
from modelserver.models.archives.store import ModelStore
from modelserver.surface.api.repository import ModelRepository, is_near


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


@pytest.mark.parametrize(("tells", "end"), [(False, "."), (True, ". There is none")])
async def test_what_the_store_does_not_have(tells, end):
    """The error is KServe's, and lists the models of the store if clients may know."""
    settings = SimpleNamespace(model_store=None, default_workers_per_model=0, tells_names=tells)
    registry = SimpleNamespace(names=list, builder=SimpleNamespace(store=ModelStore(None)))

    with pytest.raises(ModelNotFound) as caught:
        await ModelRepository(registry, settings).load("m")
    assert caught.value.kserve_message == f"Model with name m does not exist{end}"
