import json
from dataclasses import replace

import pytest
from tests.models.conftest import entry, load, naming, restore, saved, start, write_model

from modelserver.errors import ConfigError, InvalidModel, ModelNotFound, ServiceUnavailable
from modelserver.ext.snapshots.document import parse_snapshot, registry_document
from modelserver.ext.snapshots.files import SnapshotFolder
from modelserver.ext.snapshots.restoring import check_archives
from modelserver.models.options.resolve import Registration
from modelserver.models.replacing import load_anew


async def test_everything_comes_back(new_registry, store):
    """What was registered over the API is the same after a restart, down to handler and policy."""
    write_model(store, "a2", "a", "2.0")
    before = new_registry()
    await before.register(Registration(url="a", batch_size=8, max_batch_delay=50, batch_policy="greedy"))
    await before.register(Registration(url="a2", handler="own.py:handle", response_timeout=7))
    await before.register(Registration(url="b", model_name="c", split_instances="false"))
    await before.set_default("a", "2.0")
    document = registry_document(before)
    after = await restore(new_registry(), parse_snapshot(json.dumps(document)).models)

    assert registry_document(after)["models"] == document["models"]
    model = after.get("a", "1.0")
    assert (model.options.batch_size, model.options.batch_policy) == (8, "greedy")
    assert model.options.sources["batch_size"] == "snapshot"
    assert model.loaded_at_startup
    assert after.get("a").version == "2.0"
    assert after.get("a").pool.crew.spec.load.handler == "own.py:handle"
    assert after.get("c").options.split_instances == "false"


async def test_missing_or_broken_archive_is_reported(new_registry, caplog, store):
    """A model whose archive is gone is listed as failed with the reason, and the others serve (F55)."""
    registry = await restore(
        new_registry(), saved(gone={"1.0": entry("gone.mar", workers=2)}, b={"1.0": entry("b")})
    )
    model = registry.get("gone")

    assert model.failure == "Model not found at: gone.mar"
    assert "gone 1.0 cannot be restored: Model not found at: gone.mar" in caplog.text
    assert not registry.healthy
    with pytest.raises(InvalidModel, match=r"could not be restored: Model not found at: gone\.mar"):
        await registry.scale("gone", None, 1, 1)
    with pytest.raises(ServiceUnavailable, match="could not be restored"):
        model.pool.submit(None)
    assert not registry.get("b").failure

    (store / "bad.mar").write_bytes(b"no archive")
    registry = await restore(new_registry(), saved(bad={"1.0": entry("bad.mar")}))

    with pytest.raises(InvalidModel) as refused:
        await registry.register(Registration(url="bad.mar"))
    assert getattr(registry.get("bad"), "failure", "") == refused.value.message


async def test_other_version_in_the_archive_is_served(new_registry, store, caplog):
    write_model(store, "a", "a", "1.1")
    registry = await restore(new_registry(), saved(a={"1.0": entry("a")}))

    assert [model.version for model in registry.versions("a")] == ["1.1"]
    assert "a 1.0 could not be restored as a now has version 1.1" in caplog.text

    items = saved(a={"1.0": entry("a", default=False), "1.1": entry("a")})
    registry = await restore(new_registry(), items)

    assert [model.version for model in registry.versions("a")] == ["1.1"]
    assert registry.get("a").version == "1.1"


async def test_settings_load_beside_the_snapshot(new_registry, store, caplog):
    """What the settings name is loaded beside what is restored, and nothing twice (design, section 9)."""
    registry = new_registry()
    await start(registry, naming(store, "a", "b"), saved(a={"1.0": entry("a", batchSize=4)}))

    assert registry.names() == ["a", "b"]
    assert registry.get("a").options.batch_size == 4
    assert "Failed to load" not in caplog.text
    await registry.close(0)


async def test_folder_outside_of_the_store_is_restored(new_registry, store, tmp_path):
    for name in ("mine", "other"):
        write_model(tmp_path, name, name)
    registry = new_registry()
    settings = naming(store, f"{tmp_path}/mine")
    assert await load(registry, settings) == []
    document = registry_document(registry)
    assert document["models"]["mine"]["1.0"]["trusted"] is True

    with pytest.raises(ModelNotFound, match="outside the model store"):
        await load_anew(registry, registry.get("mine"), Registration(url=f"{tmp_path}/other"))
    with pytest.raises(ModelNotFound, match="outside the model store"):
        await registry.register(Registration(url=f"{tmp_path}/other"))

    again = await restore(new_registry(), parse_snapshot(json.dumps(document)).models)
    assert again.get("mine").archive.model_dir == tmp_path / "mine"
    await registry.close(0)
    await again.close(0)


async def test_a_start_loads_the_snapshot_first(new_registry, store):
    """The models of a snapshot are loaded first, then those of the settings; the outcome of both is
    reported.
    """
    notices = []
    source = saved(b={"1.0": entry("b")}, gone={"1.0": entry("gone")})

    assert not await start(new_registry(), naming(store, "absent"), source, notices=notices)
    assert notices == [
        "Restored from default: b 1.0; gone 1.0 FAILED (Model not found at: gone)",
        "Failed to load model: absent: Model not found at: absent",
    ]


def written(folder, load_models, **models):
    """A folder with the snapshot of a server that was started with these ``load_models``."""
    snapshots = SnapshotFolder(folder, {"load_models": load_models} if load_models else {})
    snapshots.write("shutdown", {"models": models})
    return snapshots


async def start_with(registry, settings, snapshots):
    """What is reported about a start with these settings and snapshots."""
    notices = []
    assert await start(registry, settings, folder=snapshots, notices=notices)
    return notices


async def test_all_brings_nothing_back(new_registry, store, tmp_path, caplog):
    """With ``all``, the snapshot of a server that was started so decides, also an empty one; one line names
    the other archives of the store and how they are loaded.
    """
    caplog.set_level("INFO", "modelserver")
    write_model(store, "new", "new")
    registry, snapshots = new_registry(), written(tmp_path, "all", b={"1.0": entry("b")})
    _, left = await start_with(registry, naming(store, "all"), snapshots)

    assert registry.names() == ["b"]
    assert left.startswith("Not loaded, as the restored state does not have them: a, new. ")
    assert "POST /models?url=a" in left
    assert "--models a" in left
    assert "also loading, unless restored: nothing" in caplog.text
    emptied = new_registry()
    (left,) = await start_with(emptied, naming(store, "all"), written(tmp_path, "all"))
    assert (emptied.names(), "them: a, b, new. " in left) == ([], True)


@pytest.mark.parametrize(
    ("models", "loaded"), [("all", ["b", "a"]), ("a", ["b", "a"])], ids=["all is new", "named"]
)
async def test_what_an_operator_asks_for_anew_is_loaded(new_registry, store, tmp_path, models, loaded):
    """``all`` where the last server was started without it, and archives that are named in any case."""
    snapshots = written(tmp_path, "" if models == "all" else "all", b={"1.0": entry("b")})
    registry = new_registry()
    notices = await start_with(registry, naming(store, models), snapshots)

    assert registry.names() == loaded
    assert notices == [f"Restored from {snapshots.newest()[0]}: b 1.0"]


async def test_all_loads_what_no_state_decides_about(new_registry, store, tmp_path):
    """A ``model_snapshot`` of the configuration decides as a file does; without any all are loaded."""
    registry = new_registry()
    settings = replace(naming(store, "all"), model_snapshot="{}")
    (left,) = await start_with(registry, settings, None)

    assert registry.names() == []
    assert "them: a, b. " in left

    registry = new_registry()

    assert await start_with(registry, naming(store, "all"), SnapshotFolder(tmp_path / "none", {})) == []
    assert registry.names() == ["a", "b"]


def of_model(**fields):
    return saved(m={"2.0": {"marName": "m.mar", **fields}})


def test_archives_must_be_there(tmp_path):
    """The message is TorchServe's."""
    with pytest.raises(ConfigError) as error:
        check_archives(of_model(), tmp_path)
    assert str(error.value) == (
        "Model archive file for model :m, version :2.0 not found in model store: m.mar"
    )

    for url in ("torchvision://resnet18", "https://example.org/m.mar"):
        check_archives(of_model(url=url), tmp_path)
    check_archives(of_model(), None)
    (tmp_path / "m.mar").write_text("")
    check_archives(of_model(), tmp_path)
