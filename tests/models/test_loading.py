"""Restoring a snapshot, loading what the settings name, telling of both, and of changes: without workers."""

import asyncio
import json
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.models.conftest import entry, load, naming, restore, saved, write_model

from modelserver.errors import Conflict, InvalidModel, ModelNotFound, ServiceUnavailable, StartFailed
from modelserver.models.archives.store import ModelStore
from modelserver.models.loading import default_name, initial, load_first, load_initial, tell_first_loads
from modelserver.models.options.resolve import BatchPolicy, Registration
from modelserver.models.replacing import load_anew
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import Settings
from modelserver.models.settings.values import ModelToLoad
from modelserver.models.snapshot import parse_snapshot, registry_document
from modelserver.models.snapshot_files import SnapshotFolder
from modelserver.run.cli import build_parser, setting_flags


def described(registry):
    return registry_document(registry)["models"]


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

    assert described(after) == document["models"]
    model = after.get("a", "1.0")
    assert (model.options.batch_size, model.options.batch_policy) == (8, BatchPolicy.GREEDY)
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
    registry = await restore(new_registry(), saved(a={"1.0": entry("a", batchSize=4)}))
    await load(registry, naming(store, "a", "b"), restored=True)

    assert registry.names() == ["a", "b"]
    assert registry.get("a").options.batch_size == 4
    assert "Failed to load" not in caplog.text
    await registry.close(0)


async def test_changes_are_reported(new_registry):
    """Each accepted change is reported before its caller gets the result; refused changes are not."""
    registry = new_registry()
    seen = []

    async def note():
        seen.append({name: list(versions) for name, versions in described(registry).items()})

    registry.on_change = note
    await registry.register(Registration(url="a"))
    await registry.scale("a", None, 0, 0)
    await registry.set_default("a", "1.0")
    with pytest.raises(Conflict):
        await registry.register(Registration(url="a"))
    with pytest.raises(ModelNotFound):
        await registry.scale("none", None, 0, 0)
    await registry.unregister("a", None)

    assert seen == [{"a": ["1.0"]}] * 3 + [{}]


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


@pytest.mark.parametrize("way", ["config.properties", "TS_LOAD_MODELS", "--models"])
async def test_operator_may_name_archives_outside_the_store(new_registry, store, tmp_path, way):
    outside = tmp_path / "outside"
    for name in ("folder", "archive", "file"):
        write_model(outside, name, name)
    for name in ("archive", "file"):
        shutil.make_archive(str(outside / name), "zip", outside / name)
        (outside / f"{name}.zip").rename(outside / f"{name}.mar")
    named = [f"{outside}/folder", f"mine={outside}/archive.mar", (outside / "file.mar").as_uri()]
    file, environment, flags = "enable_envvars_config=true\n", dict[str, str](), dict[str, object]()
    if way == "config.properties":
        file += f"load_models={','.join(named)}\n"
    elif way == "TS_LOAD_MODELS":
        environment[way] = ",".join(named)
    else:
        flags = setting_flags(build_parser().parse_args(["--models", *named]))
    (tmp_path / "config.properties").write_text(file)
    loaded = load_settings({**flags, "model_store": str(store)}, environment, tmp_path)
    registry = new_registry()

    assert await load(registry, loaded.settings) == []
    assert registry.names() == ["folder", "mine", "file"]
    await registry.close(0)


async def test_archives_are_opened_ahead(builder, registry, caplog):
    """The next one, while a model is registered. A bad one is logged and left out; progress is told (F55)."""
    opened_before, messages, build = [], [], builder.build

    async def build_and_look(name, *args, **options):
        await asyncio.sleep(0)
        opened_before.append([archive.url for archive in builder.archives])
        return await build(name, *args, **options)

    builder.build = build_and_look
    registrations = [Registration(url=url) for url in ("a.mar", "absent", "b.mar", "c.mar")]
    left_out = await load_initial(registry, registrations, messages.append, restored=False)

    assert left_out == ["Failed to load model: absent: Model not found at: absent"]
    assert left_out[0] in caplog.text
    assert messages == [f"Loading {registration.url}" for registration in registrations]
    assert registry.names() == ["a", "b", "c"]
    assert registry.get("a").loaded_at_startup
    assert opened_before == [["a.mar"], ["a.mar", "b.mar", "c.mar"], ["a.mar", "b.mar", "c.mar"]]


async def test_a_model_without_a_name_is_called_as_its_file(registry):
    """It is called as its file is where a start names it, and refused where a client does (reference 2.3)."""
    settings = Settings(load_models=(ModelToLoad("-1.0.mar"),))
    assert (
        await load_initial(
            registry, await initial(settings, ModelStore(None)), lambda _: None, restored=False
        )
        == []
    )
    with pytest.raises(InvalidModel):
        await registry.register(Registration(url="-1.0.mar"))

    assert registry.names() == ["1_0"]


async def test_a_start_loads_the_snapshot_first(new_registry, store):
    """The snapshot's models are loaded first, then those of the settings; both outcomes are reported."""
    notices = []
    loaded = SimpleNamespace(settings=naming(store, "absent"), sources={"model_snapshot": "a file"})
    source = saved(b={"1.0": entry("b")}, gone={"1.0": entry("gone")})
    registry = new_registry()
    whole = await load_first(
        registry, loaded, source, None, on_progress=lambda _: None, on_notice=notices.append
    )

    assert not whole
    assert notices == [
        "Restored from a file: b 1.0; gone 1.0 FAILED (Model not found at: gone)",
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
    loaded = SimpleNamespace(settings=settings, sources={"model_snapshot": "default"})
    assert await load_first(
        registry, loaded, (), snapshots, on_progress=lambda _: None, on_notice=notices.append
    )
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


async def test_all_means_everything_in_the_store(store):
    """The folders and archives of the store, without what is hidden or something else (reference 2.3)."""
    for name in ("b.mar", "c.model", "d.tar.gz", "notes.txt", ".hidden.mar"):
        (store / name).touch()

    assert [item.url for item in await initial(naming(store, "All"), ModelStore(store))] == [
        "a",
        "b",
        "b.mar",
        "c.model",
        "d.tar.gz",
    ]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("resnet-18.mar", "resnet_18"),
        ("a/b/my.model", "my"),
        ("folder/", "folder"),
        ("_x.mar", "x"),
        ("a.b.mar", "a_b"),
        ("x.tar.gz", "x_tar_gz"),
    ],
)
def test_default_name_is_made_of_the_files(url, name):
    """A name is made of the file's where the manifest has none (reference 2.3)."""
    assert default_name(url) == name


def model(name, *loads, expected=None):
    workers = []
    for outcome in loads:
        future = asyncio.get_running_loop().create_future()
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
            future.exception()
        workers.append(SimpleNamespace(first_load=future))
    failure = next((str(load) for load in loads if load is not None), "")
    ready = sum(load is None for load in loads)
    pool = SimpleNamespace(
        workers=workers,
        min_workers=len(loads) if expected is None else expected,
        failure=failure,
        statistics=lambda: SimpleNamespace(ready=ready),
    )
    return SimpleNamespace(name=name, pool=pool)


async def test_ready_and_failed_models_are_reported(caplog):
    """The line of a failed one says why; one of them is enough for a start that is not whole. What has no
    workers, and is to have none, has no line.
    """
    output = []
    caplog.set_level("INFO")

    assert await tell_first_loads([model("a", None, None), model("b")], output.append, time.monotonic() - 3.0)
    (line,) = output
    text, seconds = line.rstrip(" s)").split(" (")
    assert text == "a: 2/2 workers ready"
    assert 3.0 <= float(seconds) < 10.0
    assert [record.getMessage() for record in caplog.records] == output

    output = []
    models = [model("a", None), model("b", StartFailed("no such file")), model("c", expected=1)]

    assert not await tell_first_loads(models, output.append, time.monotonic())
    messages = {line[0]: line for line in output}
    assert messages["b"].startswith("b: 0/1 workers ready (0.")
    assert messages["b"].endswith(" s): no such file")
    assert messages["c"].endswith(": unknown reason")
