import json

import pytest
from tests.models.conftest import entry, naming, restore, saved, start, write_model

from modelserver.errors import Conflict, ModelNotFound
from modelserver.ext.snapshots.document import parse_snapshot, registry_document
from modelserver.models.options.resolve import Registration


async def test_failed_version_stays_in_the_state(new_registry, store):
    items = saved(gone={"1.0": entry("gone", workers=2, handler="own.py")})
    registry = await restore(new_registry(), items)
    again = parse_snapshot(json.dumps(registry_document(registry))).models

    assert again[0].registration.min_workers == 2
    assert again[0].registration.handler == "own.py"
    assert again[0].registration.url == "gone"


async def test_failed_version_gives_way(new_registry, store):
    write_model(store, "a2", "a", "2.0")
    items = saved(a={"1.0": entry("gone")}, gone={"1.0": entry("gone.mar")})
    await start(registry := new_registry(), naming(store, "a2"), items)
    assert registry.get("a").version == "2.0"
    await registry.register(Registration(url="a"))
    assert not registry.get("a", "1.0").failure
    with pytest.raises(Conflict):
        await registry.register(Registration(url="a"))
    await registry.unregister("gone", None)
    with pytest.raises(ModelNotFound):
        registry.get("gone")
