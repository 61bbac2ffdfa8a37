from pathlib import Path

import pytest

from modelserver.errors import ConfigError
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.models.settings.properties import parse
from modelserver.tools.build import context
from modelserver.tools.build.context import SETTINGS, ImageOptions, Source, write_context
from modelserver.tools.build.lock import Lock
from modelserver.tools.container.__main__ import prepare

ROOT = Path(__file__).parents[3]
LOCK = Lock({"numpy": "2.0", "torch": "2.9.1+cpu"})


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A script; the lock and the wheel, which have tests of their own, are not made."""
    monkeypatch.setattr(context, "lock", lambda requirements, imports: LOCK)
    monkeypatch.setattr(context, "write_wheel", lambda folder: (folder / "x.whl").touch())
    script = tmp_path / "iris.py"
    script.write_text("import numpy\n\nclass Iris: ...\n")
    return Source("iris.py\nRUN x", script, SingleFile(str(script)))


def instructions(text):
    """The instructions of a Dockerfile without comments, each on one line."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def test_context_has_all_that_the_dockerfile_copies(source, tmp_path):
    """And nothing else; everybody may read it."""
    target = tmp_path / "out" / "image"
    write_context(target, source, ImageOptions())
    text = (target / "Dockerfile").read_text()
    copied = {word for line in instructions(text) if line.startswith("COPY") for word in line.split()[1:-1]}

    assert copied | {"Dockerfile"} == {path.name for path in target.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in target.rglob("*")} == {0o644, 0o755}
    assert target.stat().st_mode & 0o777 == 0o755
    assert (target / "requirements-torch.txt").read_text() == "torch==2.9.1\n"
    assert (target / "requirements.txt").read_text().splitlines()[0] == "numpy==2.0"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["image"]


def test_dockerfile_is_the_end_of_the_projects(source, tmp_path):
    """User, health check and start are the same, and the source's name cannot add instructions."""
    write_context(tmp_path / "image", source, ImageOptions(base="debian:x"))
    own = instructions((tmp_path / "image" / "Dockerfile").read_text())
    projects = instructions((ROOT / "Dockerfile").read_text())
    kinds = ("USER", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "WORKDIR")

    assert [line for line in own if line.startswith(kinds)] == [
        line for line in projects[projects.index("FROM ${BASE}") :] if line.startswith(kinds)
    ]
    assert own[:2] == ["ARG BASE=debian:x", "FROM ${BASE}"]
    assert "ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu" in own
    assert "RUN x" not in own


def test_dockerfile_without_torch_installs_none(source, tmp_path, monkeypatch):
    monkeypatch.setattr(context, "lock", lambda requirements, imports: Lock({}))
    write_context(tmp_path / "image", source, ImageOptions())

    assert "torch" not in (tmp_path / "image" / "Dockerfile").read_text()
    assert not (tmp_path / "image" / "requirements-torch.txt").exists()


def test_settings_are_those_of_the_projects_image_and_the_model(source, tmp_path):
    """The user's are kept, except for addresses, store and models."""
    users = b"job_queue_size=7\ninference_address=http://127.0.0.1:1\nload_models=all"
    options = ImageOptions(properties=users, defaults=ModelDefaults(batch_size=8))
    write_context(tmp_path / "image", source, options)
    projects = parse((ROOT / "scripts" / "container.properties").read_bytes())
    settings = parse((tmp_path / "image" / "config.properties").read_bytes())

    assert {key: value for key, value in projects.items() if key != "load_models"} == SETTINGS
    assert settings == {
        **SETTINGS,
        "job_queue_size": "7",
        "load_models": "iris=iris",
        "models": '{"iris": {"1.0": {"batchSize": 8}}}',
    }
    _, environment = prepare([], {})
    loaded = load_settings({"model_store": str(tmp_path)}, environment, tmp_path / "image")
    assert loaded.warnings == ()
    assert str(loaded.settings.inference_address) == "http://0.0.0.0:8080"


def test_requirements_beside_the_script_count(source, tmp_path, monkeypatch):
    """Unless another file is named; what the script imports counts too."""
    calls = []
    monkeypatch.setattr(context, "lock", lambda names, modules: calls.append((names, modules)) or LOCK)
    (tmp_path / "requirements.txt").write_text("pillow\n")
    (tmp_path / "other.txt").write_text("scipy\n")
    write_context(tmp_path / "image", source, ImageOptions(extras=("modelserver[onnx]",)))
    write_context(tmp_path / "image", source, ImageOptions(requirements=tmp_path / "other.txt"))

    assert calls == [(["pillow", "modelserver[onnx]"], {"numpy"}), (["scipy"], {"numpy"})]


def test_context_is_replaced_and_nothing_else(source, tmp_path):
    (tmp_path / "image").mkdir()
    write_context(tmp_path / "image", source, ImageOptions())
    (tmp_path / "image" / "left").touch()
    write_context(tmp_path / "image", source, ImageOptions())
    assert not (tmp_path / "image" / "left").exists()

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "Dockerfile").write_text("FROM mine\n")
    for name in ("mine", "iris.py"):
        with pytest.raises(ConfigError, match="has not written it"):
            write_context(tmp_path / name, source, ImageOptions())
    assert (tmp_path / "mine" / "Dockerfile").read_text() == "FROM mine\n"


def test_failure_leaves_what_was_there(source, tmp_path):
    write_context(tmp_path / "image", source, ImageOptions())
    with pytest.raises(ConfigError, match="--name"):
        write_context(tmp_path / "image", source, ImageOptions(name="a b"))

    assert sorted(path.name for path in tmp_path.iterdir()) == ["image", "iris.py"]
    assert (tmp_path / "image" / "Dockerfile").is_file()


def test_libraries_that_the_handler_needs_must_be_here(tmp_path, monkeypatch):
    path = tmp_path / "iris.ubj"
    path.write_text("{}")
    source = Source("iris.ubj", path, None)
    monkeypatch.setattr(context, "find_spec", lambda name: None)
    packed = context.PackedModel("iris", context.pack_model.__globals__["Manifest"](), ("xgboost",), 1, 1)
    monkeypatch.setattr(context, "pack_model", lambda *arguments: packed)

    with pytest.raises(ConfigError, match="xgboost cannot be imported here"):
        write_context(tmp_path / "image", source, ImageOptions())


def test_batch_size_of_an_archive_is_its_own(tmp_path):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text("{}")
    options = ImageOptions(defaults=ModelDefaults(batch_size=8))

    with pytest.raises(ConfigError, match="--batch-size"):
        write_context(tmp_path / "image", Source("hub", tmp_path / "hub"), options)
