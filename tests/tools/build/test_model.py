import json
import os
import pickle

import pytest

from modelserver.errors import ConfigError
from modelserver.models.archives.single_file import SingleFile
from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.build.model import MARK, pack_model


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def script(tmp_path):
    """A script with what it needs beside it, and what must not get into an image."""
    folder = tmp_path / "project"
    for name in ("data", "venv/lib", "old-container/model-store", ".git", "__pycache__", "node_modules/x"):
        (folder / name).mkdir(parents=True)
    texts = {"iris.py": "import rows\n\nclass Iris: ...\n", "old-container/Dockerfile": f"{MARK} iris.py\n"}
    others = """
        rows.py other.py labels.json data/table.csv data/.secret .env key_file.json venv/pyvenv.cfg
        venv/lib/x.py old-container/model-store/x .git/config __pycache__/iris.pyc node_modules/x/y.js
        older.mar
    """
    for name in (*texts, *others.split()):
        (folder / name).write_text(texts.get(name, ""))
    (folder / "data" / "again").symlink_to(folder / "data")
    (folder / "data" / "gone").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe")
    return folder / "iris.py"


def test_script_comes_with_what_it_imports_and_reads(script, tmp_path):
    """Links are followed, once; secrets, environments, archives and earlier contexts stay out."""
    weights = tmp_path / "weights.pt"
    weights.write_text("12345")
    model = pack_model(script, SingleFile(str(script), "Iris", str(weights)), tmp_path / "store", None)

    folder = tmp_path / "store" / "Iris"
    expected = {"MAR-INF/MANIFEST.json", "iris.py", "rows.py", "labels.json", "data/table.csv", "weights.pt"}
    assert files_of(folder) == expected
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())
    assert manifest["model"]["handler"] == "iris.py:Iris"
    assert manifest["model"]["serializedFile"] == "weights.pt"
    assert (model.name, model.files, model.needs) == ("Iris", 6, ())
    assert model.size == sum((folder / name).stat().st_size for name in expected)


@pytest.mark.parametrize("archive_format", ["default", "tgz", "no-archive"])
def test_archives_keep_the_name_of_their_manifest(script, tmp_path, archive_format):
    config = ArchiveConfig("flowers", str(script), "2.0", export_path=tmp_path, archive_format=archive_format)
    model = pack_model(build_archive(config), None, tmp_path / "store", None)

    assert files_of(tmp_path / "store" / "flowers") == {"MAR-INF/MANIFEST.json", "iris.py"}
    assert (model.name, model.manifest.model_version) == ("flowers", "2.0")


def test_another_name_is_that_of_the_folder(script, tmp_path):
    model = pack_model(script, SingleFile(str(script)), tmp_path / "store", "flowers")

    assert (tmp_path / "store" / "flowers" / "iris.py").is_file()
    assert model.name == "flowers"


def test_folder_of_the_hub_is_copied_as_it_is(tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    model = pack_model(tmp_path / "bert", None, tmp_path / "store", None)

    assert files_of(tmp_path / "store" / "bert") == {"config.json"}
    assert model.manifest.missing


@pytest.mark.parametrize(
    ("handler", "file", "needs"),
    [
        ("base_handler", "net.onnx", ("onnxruntime", "torch")),
        ("base_handler", "net.pt2", ("torch",)),
        ("tabular", "iris.skops", ("skops", "sklearn")),
        ("tabular", "iris.ubj", ("xgboost",)),
        ("image_classifier", "net.pt", ("torch", "torchvision")),
        ("own.py", "net.pt", ()),
        ("own.py", None, ()),
    ],
)
def test_built_in_handlers_need_their_libraries(tmp_path, handler, file, needs):
    (tmp_path / "m" / "MAR-INF").mkdir(parents=True)
    manifest = {"model": {"modelName": "m", "handler": handler, "serializedFile": file}}
    (tmp_path / "m" / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))

    assert pack_model(tmp_path / "m", None, tmp_path / "store", None).needs == needs


def test_pickle_needs_trust(tmp_path):
    path = tmp_path / "iris.joblib"
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(ConfigError, match="pickle"):
        pack_model(path, SingleFile(str(path)), tmp_path / "store", None)

    trusted = SingleFile(str(path), trusts_pickles=True)
    assert pack_model(path, trusted, tmp_path / "store", None).needs == ("joblib", "sklearn")


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "x.mar").write_text("no zip")

    with pytest.raises(ConfigError, match=r"x\.mar"):
        pack_model(tmp_path / "x.mar", None, tmp_path / "store", None)
