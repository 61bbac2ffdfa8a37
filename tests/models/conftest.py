"""What tests of this folder share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.models import doubles

from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.pool import Pool
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.models import loading
from modelserver.models.builder import VersionBuilder
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.keys import KEYS
from modelserver.models.settings.settings import Settings
from modelserver.models.settings.values import ModelToLoad
from modelserver.models.snapshot import parse_snapshot

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
        pool.crew.min_workers, pool.crew.max_workers = min_workers, max_workers
        return []

    monkeypatch.setattr(Pool, "scale", expect)

    def make() -> Registry:
        sources = dict.fromkeys(KEYS, "default")
        work, metrics = tmp_path / "work", ServerMetrics(hostname="h")
        return Registry(VersionBuilder(naming(store), sources, work, metrics, DeviceRing(0)))

    return make


def naming(store: Path, *models: str) -> Settings:
    """Settings that name these models of the start."""
    return Settings(model_store=store, load_models=tuple(map(ModelToLoad, models)))


def entry(url: str, workers: int = 0, *, default: bool = True, **fields: Any) -> dict[str, Any]:
    """A version as a snapshot has it."""
    numbers = {"minWorkers": workers, "maxWorkers": workers, "batchSize": 1, "maxBatchDelay": 100}
    return {"defaultVersion": default, "marName": url, **numbers, **fields}


def saved(**models: dict[str, Any]) -> tuple[SavedModel, ...]:
    return parse_snapshot(json.dumps({"models": models})).models


async def restore(registry: Registry, items: tuple[SavedModel, ...]) -> Registry:
    await loading.restore(registry, items, lambda _: None)
    return registry


@pytest.fixture
async def builder() -> doubles.VersionBuilder:
    """A builder for archives that need no files."""
    return doubles.VersionBuilder()


@pytest.fixture
async def registry(builder: doubles.VersionBuilder) -> Registry:
    """Of models whose workers load, or fail, when the test says so."""
    return Registry(cast("Any", builder))


async def register(registry: Registry, url: str, workers: int = 0, **parameters: Any) -> Any:
    return await registry.register(Registration(url=url, initial_workers=workers, **parameters))
