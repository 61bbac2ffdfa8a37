"""Loading what the settings name, telling of it, and of changes: without workers."""

import asyncio
import re
import shutil
import time
from types import SimpleNamespace

import pytest
from tests.models.conftest import load, load_all, naming, write_model

from modelserver.errors import Conflict, InvalidModel, ModelNotFound, StartFailed
from modelserver.models.archives.store import ModelStore
from modelserver.models.loading import default_name, initial, tell_first_loads
from modelserver.models.options.resolve import Registration
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import Settings
from modelserver.models.settings.values import ModelToLoad
from modelserver.run.cli import build_parser, setting_flags


async def test_changes_are_reported(new_registry):
    """Each accepted change is reported before its caller gets the result; refused changes are not."""
    registry = new_registry()
    seen = []

    async def note():
        seen.append([(model.name, model.version) for model in registry.versions()])

    registry.on_change = note
    await registry.register(Registration(url="a"))
    await registry.scale("a", None, 0, 0)
    await registry.set_default("a", "1.0")
    with pytest.raises(Conflict):
        await registry.register(Registration(url="a"))
    with pytest.raises(ModelNotFound):
        await registry.scale("none", None, 0, 0)
    await registry.unregister("a", None)

    assert seen == [[("a", "1.0")]] * 3 + [[]]


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
    left_out = await load_all(registry, registrations, messages.append)

    assert left_out == ["Failed to load model: absent: Model not found at: absent"]
    assert left_out[0] in caplog.text
    assert messages == [f"Loading {registration.url}" for registration in registrations]
    assert registry.names() == ["a", "b", "c"]
    assert registry.get("a").loaded_at_startup
    assert opened_before == [["a.mar"], ["a.mar", "b.mar", "c.mar"], ["a.mar", "b.mar", "c.mar"]]


async def test_a_model_without_a_name_is_called_as_its_file(registry):
    """It is called as its file is where a start names it, and refused where a client does (reference 2.3)."""
    settings = Settings(load_models=(ModelToLoad("-1.0.mar"),))
    assert await load_all(registry, await initial(settings, ModelStore(None))) == []
    with pytest.raises(InvalidModel):
        await registry.register(Registration(url="-1.0.mar"))

    assert registry.names() == ["1_0"]


async def test_all_means_everything_in_the_store(store):
    """The folders and archives of the store, without what is hidden or something else (reference 2.3)."""
    for name in ("b.mar", "c.model", "d.tar.gz", "notes.txt", ".hidden.mar"):
        (store / name).touch()

    urls = [item.url for item in await initial(naming(store, "All"), ModelStore(store))]
    assert urls == ["a", "b", "b.mar", "c.model", "d.tar.gz"]


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
    assert re.fullmatch(r"b: 0/1 workers ready \(\d\.\d s\): no such file", messages["b"])
    assert messages["c"].endswith(": unknown reason")
