"""What tests of this folder share."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.models import doubles

from modelserver.engine.offload.helpers import Helpers
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.pool import Pool
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import InvalidModel
from modelserver.models import loading, reading
from modelserver.models.builder import VersionBuilder
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.settings import KEYS, Settings
from modelserver.models.settings.values import ModelToLoad
from modelserver.models.snapshot import parse_snapshot
from modelserver.models.version import SavedModel


def write_model(store: Path, folder: str, name: str, version: str = "1.0") -> None:
    place = store / folder
    (place / "MAR-INF").mkdir(parents=True, exist_ok=True)
    manifest = {
        "runtime": "python",
        "model": {"modelName": name, "modelVersion": version, "handler": "own.py"},
    }
    (place / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (place / "own.py").write_text("def handle(data, context):\n    return data\n")


@pytest.fixture(scope="module")
def shared_helpers():
    """Builders read archives with the same processes: new ones would take longer than most tests."""
    # So many that none waits for another, in a loop that has ended.
    made = Helpers("archives", 16, 1 << 30, InvalidModel)
    shared = SimpleNamespace(call=made.call, close=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "Helpers", lambda *_: shared)
        yield
    made.close()


@pytest.fixture
def store(tmp_path):
    made = tmp_path / "store"
    made.mkdir()
    write_model(made, "a", "a")
    write_model(made, "b", "b")
    return made


@pytest.fixture
def new_registry(store, tmp_path, monkeypatch, shared_helpers):
    """A registry as at a server's start, whose pools note how many workers they should have."""

    def expect(pool, min_workers, max_workers):
        pool.crew.min_workers, pool.crew.max_workers = min_workers, max_workers
        return []

    monkeypatch.setattr(Pool, "scale", expect)

    builders = []

    def make():
        sources = dict.fromkeys(KEYS, "default")
        work, metrics = tmp_path / "work", ServerMetrics(hostname="h")
        builders.append(VersionBuilder(naming(store), sources, work, metrics, DeviceRing(0)))
        return Registry(builders[-1])

    yield make
    for each in builders:
        each.close()


def naming(store: Path, *models: str) -> Settings:
    return Settings(model_store=store, load_models=tuple(map(ModelToLoad, models)))


def entry(url: str, workers: int = 0, *, default: bool = True, **fields: Any) -> dict[str, Any]:
    numbers = {"minWorkers": workers, "maxWorkers": workers, "batchSize": 1, "maxBatchDelay": 100}
    return {"defaultVersion": default, "marName": url, **numbers, **fields}


def saved(**models: dict[str, Any]) -> tuple[SavedModel, ...]:
    return parse_snapshot(json.dumps({"models": models})).models


async def load(registry: Registry, settings: Settings, *, restored: bool = False) -> list[str]:
    """What could not be loaded of the models that the settings name."""
    models = await loading.initial(settings, registry.builder.store)
    return await loading.load_initial(registry, models, lambda _: None, restored=restored)


async def restore(registry: Registry, items: tuple[SavedModel, ...]) -> Registry:
    await loading.restore(registry, items, lambda _: None)
    return registry


@pytest.fixture
async def builder():
    """A builder for archives that need no files."""
    return doubles.VersionBuilder()


@pytest.fixture
async def registry(builder):
    """Of models whose workers load, or fail, when the test says so."""
    return Registry(cast("Any", builder))


async def register(registry: Registry, url: str, workers: int = 0, **parameters: Any) -> Any:
    return await registry.register(Registration(url=url, initial_workers=workers, **parameters))
