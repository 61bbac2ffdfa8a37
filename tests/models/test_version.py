"""Versions that could not be restored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.models.conftest import entry, naming, restore, saved, write_model

from modelserver.errors import Conflict, ModelNotFound
from modelserver.models.loading import initial, load_initial
from modelserver.models.options.resolve import Registration
from modelserver.models.snapshot import parse_snapshot, registry_document
from modelserver.models.version import FailedVersion

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from modelserver.models.registry import Registry


async def test_failed_version_stays_in_the_state(new_registry: Callable[..., Registry], store: Path) -> None:
    """When the archive is back, the next start finds the model as it was."""
    items = saved(gone={"1.0": entry("gone", workers=2, handler="own.py")})
    registry = await restore(new_registry(), items)
    again = parse_snapshot(json.dumps(registry_document(registry))).models

    assert again[0].registration.min_workers == 2
    assert again[0].registration.handler == "own.py"
    assert again[0].registration.url == "gone"


async def test_failed_version_gives_way(new_registry: Callable[..., Registry], store: Path) -> None:
    """It can be registered again or removed, and is the default only as long as there is no other."""
    write_model(store, "a2", "a", "2.0")
    registry = await restore(new_registry(), saved(a={"1.0": entry("gone")}, gone={"1.0": entry("gone.mar")}))
    await load_initial(
        registry,
        await initial(naming(store, "a2"), registry.builder.store),
        lambda _: None,
        restored=True,
    )
    assert registry.get("a").version == "2.0"
    await registry.register(Registration(url="a"))
    assert not isinstance(registry.get("a", "1.0"), FailedVersion)
    with pytest.raises(Conflict):
        await registry.register(Registration(url="a"))
    await registry.unregister("gone", None)
    with pytest.raises(ModelNotFound):
        registry.get("gone")
