"""Versions that could not be restored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from modelserver.errors import Conflict, ModelNotFound
from modelserver.models.preparation import Preparation
from modelserver.models.registry import Registry
from modelserver.models.snapshot import parse_snapshot, registry_document
from modelserver.models.version import FailedVersion
from modelserver.options.resolve import Registration
from modelserver.pools.devices import DeviceRing
from modelserver.pools.pool import Pool
from modelserver.settings.keys import KEYS
from modelserver.settings.settings import Settings
from modelserver.settings.values import ModelToLoad
from modelserver.telemetry.metrics import ServerMetrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from modelserver.models.version import SavedModel


def write_model(store: Path, folder: str, name: str, version: str = "1.0") -> None:
    """A model in a folder of the store."""
    place = store / folder
    (place / "MAR-INF").mkdir(parents=True, exist_ok=True)
    manifest = {
        "runtime": "python",
        "model": {"modelName": name, "modelVersion": version, "handler": "own.py"},
    }
    (place / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (place / "own.py").write_text("def handle(data, context):\n    return data\n")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir()
    write_model(made, "a", "a")
    write_model(made, "b", "b")
    return made


@pytest.fixture
def new_registry(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """A registry as at a server's start, whose pools note how many workers they should have."""

    def expect(pool: Pool, min_workers: int, max_workers: int) -> list[Any]:
        pool.min_workers, pool.max_workers = min_workers, max_workers
        return []

    monkeypatch.setattr(Pool, "scale", expect)

    def make(*load_models: str) -> Registry:
        settings = Settings(model_store=store, load_models=tuple(ModelToLoad(item) for item in load_models))
        sources = dict.fromkeys(KEYS, "default")
        return Registry(
            Preparation(settings, sources, tmp_path / "work", ServerMetrics(hostname="h"), DeviceRing(0))
        )

    return make


def entry(url: str, workers: int = 0, *, default: bool = True, **fields: Any) -> dict[str, Any]:
    """A version as a snapshot has it."""
    numbers = {"minWorkers": workers, "maxWorkers": workers, "batchSize": 1, "maxBatchDelay": 100}
    return {"defaultVersion": default, "marName": url, **numbers, **fields}


def saved(**models: dict[str, Any]) -> tuple[SavedModel, ...]:
    return parse_snapshot(json.dumps({"models": models}))


async def restore(registry: Registry, items: tuple[SavedModel, ...]) -> Registry:
    await registry.restore(items, lambda _: None)
    return registry


async def test_failed_version_stays_in_the_state(new_registry: Callable[..., Registry], store: Path) -> None:
    """When the archive is back, the next start finds the model as it was."""
    items = saved(gone={"1.0": entry("gone", workers=2, handler="own.py")})
    registry = await restore(new_registry(), items)
    again = parse_snapshot(json.dumps(registry_document(registry, "x")))

    assert again[0].registration.min_workers == 2
    assert again[0].registration.handler == "own.py"
    assert again[0].registration.url == "gone"


async def test_failed_version_gives_way(new_registry: Callable[..., Registry], store: Path) -> None:
    """It can be registered again or removed, and is the default only as long as there is no other."""
    write_model(store, "a2", "a", "2.0")
    registry = await restore(
        new_registry("a2"), saved(a={"1.0": entry("gone")}, gone={"1.0": entry("gone.mar")})
    )
    await registry.load_initial(lambda _: None, restored=True)
    assert registry.get("a").version == "2.0"
    await registry.register(Registration(url="a"))
    assert not isinstance(registry.get("a", "1.0"), FailedVersion)
    with pytest.raises(Conflict):
        await registry.register(Registration(url="a"))
    await registry.unregister("gone", None)
    with pytest.raises(ModelNotFound):
        registry.get("gone")
