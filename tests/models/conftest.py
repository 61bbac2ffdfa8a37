import json
from functools import partial
from types import SimpleNamespace

import pytest
from tests.models import doubles

from modelserver.engine.offload.helpers import Helpers
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.pool import Pool
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import InvalidModel
from modelserver.ext.snapshots.document import Saved, parse_snapshot
from modelserver.ext.snapshots.restoring import Restoring
from modelserver.models import loading, reading
from modelserver.models.builder import VersionBuilder
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.settings import KEYS, Settings
from modelserver.models.settings.values import ModelToLoad


def write_model(store, folder, name, version="1.0", *, config="", runtime="python", **fields):
    """An unpacked archive with a handler; ``fields`` of its manifest that are None are left out."""
    place = store / folder
    (place / "MAR-INF").mkdir(parents=True, exist_ok=True)
    model = {"modelName": name, "modelVersion": version, "handler": "own.py", **fields}
    if config:
        model["configFile"] = "model-config.yaml"
        (place / "model-config.yaml").write_text(config)
    model = {key: value for key, value in model.items() if value is not None}
    (place / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"runtime": runtime, "model": model}))
    (place / "own.py").write_text("def handle(data, context):\n    return data\n")


def version_builder(work, devices=0, **settings):
    """Prepares versions in this folder, on a machine with so many GPUs."""
    work.mkdir(exist_ok=True)
    sources = dict.fromkeys(KEYS, "default")
    return VersionBuilder(Settings(**settings), sources, work, ServerMetrics(), DeviceRing(devices))


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
        builders.append(version_builder(tmp_path / "work", model_store=store))
        return Registry(builders[-1])

    yield make
    for each in builders:
        each.close()


def naming(store, *models):
    return Settings(model_store=store, load_models=tuple(map(ModelToLoad, models)))


def entry(url, workers=0, *, default=True, **fields):
    numbers = {"minWorkers": workers, "maxWorkers": workers, "batchSize": 1, "maxBatchDelay": 100}
    return {"defaultVersion": default, "marName": url, **numbers, **fields}


def saved(**models):
    return parse_snapshot(json.dumps({"models": models})).models


async def load_all(registry, registrations, on_progress=lambda _: None):
    notices = []

    async def listing():
        return registrations

    await loading.load_first(registry, listing, on_progress=on_progress, on_notice=notices.append)
    return notices


async def load(registry, settings):
    return await load_all(registry, await loading.initial(settings, registry.builder.store))


async def start(registry, settings, items=(), *, folder=None, notices=None):
    notice = [].append if notices is None else notices.append
    host = SimpleNamespace(registry=registry, settings=settings, progress=lambda _: None, notice=notice)
    restoring = Restoring(host, Saved(items, {}), folder)
    listing = partial(restoring.load, partial(loading.initial, settings, registry.builder.store))
    return await loading.load_first(registry, listing, on_progress=host.progress, on_notice=notice)


async def restore(registry, items):
    await start(registry, Settings(), items)
    return registry


@pytest.fixture
async def builder():
    return doubles.VersionBuilder()


@pytest.fixture
async def registry(builder):
    return Registry(builder)


async def register(registry, url, workers=0, **parameters):
    return await registry.register(Registration(url=url, initial_workers=workers, **parameters))
