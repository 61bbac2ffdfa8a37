import json
import pickle
import shutil
import zipfile
from contextlib import closing

import pytest

from modelserver.errors import InvalidModel
from modelserver.ext.files.extension import lay_out
from modelserver.ext.files.layout import lay_out_file
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.archives.sources import locate
from modelserver.models.archives.urls import UrlPolicy
from modelserver.models.reading import Reader

_SCRIPT = "import helper\nclass A:\n    pass\nclass B:\n    pass\nif True:\n    from x import y as C\nd = A\n"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "store"
    (made / "package").mkdir(parents=True)
    (made / "__pycache__").mkdir()
    for name, text in {
        "handler.py": _SCRIPT,
        "helper.py": "x = 1\n",
        "weights.pt": "w",
        "old.mar": "m",
        ".env": "secret",
        "net.pt2": "n",
        "net.onnx": "o",
        "script.ts": "t",
    }.items():
        (made / name).write_text(text)
    return made


async def opened(url, store, workdir, *, trusted=False):
    located = await locate(url, store, UrlPolicy(), workdir, trusted=trusted)
    with closing(Reader()) as reader:
        reader.lay_out = lay_out
        return await reader.open(located, workdir, trusted=True)


async def test_a_script_is_an_archive(folder, tmp_path):
    """Its manifest names the handler; sources are copied, so that a later change does not reach workers that
    start again; other files are linked, but not archives, caches or what is hidden.
    """
    archive = await opened("handler.py", folder, tmp_path / "work")
    (folder / "handler.py").write_text("broken(")
    inside = {path.name for path in archive.model_dir.iterdir()}

    assert (archive.manifest.model_name, archive.manifest.handler) == ("handler", "handler.py")
    assert archive.temporary
    assert inside == {
        "MAR-INF",
        "handler.py",
        "helper.py",
        "package",
        "weights.pt",
        "net.pt2",
        "net.onnx",
        "script.ts",
    }
    assert (archive.model_dir / "handler.py").read_text() == _SCRIPT
    assert not (archive.model_dir / "helper.py").is_symlink()
    assert (archive.model_dir / "weights.pt").resolve() == folder / "weights.pt"
    archive.close()
    assert not archive.model_dir.exists()
    assert (folder / "package").is_dir()


@pytest.mark.parametrize(
    ("script", "brought"),
    [
        ("import helper\n", {"helper", "deeper"}),
        ("def f():\n    from deeper import x\n", {"deeper"}),
        ("import json\n", set()),
        ("import package\n", {"helper", "deeper", "other"}),
        ("from importlib import import_module\n", {"helper", "deeper", "other"}),
        ("import (\n", {"helper", "deeper", "other"}),
    ],
)
async def test_imported_sources_beside_a_script_come_along(folder, tmp_path, script, brought):
    (folder / "helper.py").write_text("import deeper\n")
    (folder / "deeper.py").write_text("x = 1\n")
    (folder / "other.py").write_text("import torch\n")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "handler.py").write_text(script)
    archive = await opened("handler.py", folder, tmp_path / "work")

    assert {path.stem for path in archive.model_dir.glob("*.py")} == brought | {"handler"}


@pytest.mark.parametrize("name", ["A", "B", "C", "d"])
async def test_a_name_in_the_script_is_the_models(folder, tmp_path, name):
    archive = await opened(f"handler.py:{name}", folder, tmp_path / "work")
    assert (archive.manifest.model_name, archive.manifest.handler) == (name, f"handler.py:{name}")


async def test_a_name_that_is_missing(folder, tmp_path):
    with pytest.raises(InvalidModel, match=r"handler.py has no Sentiment: it defines A, B\."):
        await opened("handler.py:Sentiment", folder, tmp_path / "work")
    assert list((tmp_path / "work").iterdir()) == []

    (folder / "handler.py").write_text("def (")
    assert (await opened("handler.py:f", folder, tmp_path / "work")).manifest.handler == "handler.py:f"
    (folder / "handler.py").write_text("from helper import *")
    await opened("handler.py:f", folder, tmp_path / "work")


async def test_weights_of_a_script_are_its_serialized_file(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights.pt").write_text("other")
    url = f"{folder}/handler.py?model_file={tmp_path}/elsewhere/weights.pt"
    archive = await opened(url, folder, tmp_path / "work", trusted=True)
    manifest = json.loads((archive.model_dir / "MAR-INF" / "MANIFEST.json").read_text())

    assert manifest["model"]["serializedFile"] == "weights.pt"
    assert (archive.model_dir / "weights.pt").read_text() == "other"


@pytest.mark.parametrize(
    ("url", "file"), [("net.pt2", "net.pt2"), ("net.onnx", "net.onnx"), ("script.ts", "script.pt")]
)
async def test_model_file_gets_the_handler_of_tensors(folder, tmp_path, url, file):
    archive = await opened(url, folder, tmp_path / "work")
    manifest = json.loads((archive.model_dir / "MAR-INF" / "MANIFEST.json").read_text())

    assert archive.manifest.handler == "base_handler"
    assert manifest["model"]["serializedFile"] == file
    assert (archive.model_dir / file).resolve() == folder / url


def laid_out(path, **options):
    """The handler and the linked file of a model file."""
    folder = path.parent / f"laid-out-{path.name}"
    lay_out_file(SingleFile(str(path), **options), folder)
    model = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())["model"]
    assert (folder / model["serializedFile"]).resolve() == path
    return model["handler"], model["serializedFile"]


def test_the_content_decides(tmp_path):
    """The format that the content shows overrides the name; models of tables have the handler for tables."""
    with zipfile.ZipFile(tmp_path / "program.pt", "w") as archive:
        archive.writestr("program/archive_format", "pt2")
    (tmp_path / "trees.json").write_text('{"learner": {}}')
    (tmp_path / "trees.ubj").write_bytes(b"?")

    assert laid_out(tmp_path / "program.pt") == ("base_handler", "program.pt2")
    assert laid_out(tmp_path / "trees.json") == ("tabular", "trees.json")
    assert laid_out(tmp_path / "trees.ubj") == ("tabular", "trees.ubj")


@pytest.mark.parametrize("name", ["a.joblib", "a.pkl", "a.skops", "a.pt", "a.json"])
def test_pickles_need_trust(name, tmp_path):
    """Pickles of any name need it; the error has the remedy."""
    (tmp_path / name).write_bytes(pickle.dumps({"a": 1}))

    with pytest.raises(InvalidModel, match=rf"{name} --trust"):
        laid_out(tmp_path / name)
    shutil.rmtree(tmp_path / f"laid-out-{name}")
    assert laid_out(tmp_path / name, trusts_pickles=True) == ("tabular", "a.joblib")


def test_what_only_its_name_says_is_a_pickle(tmp_path):
    (tmp_path / "a.joblib").write_bytes(b"LZ4?")
    with pytest.raises(InvalidModel, match="can run any code when it is loaded"):
        laid_out(tmp_path / "a.joblib")


def test_what_cannot_be_served(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "m.safetensors").write_bytes(b"?")

    with pytest.raises(InvalidModel, match="llama_cpp"):
        laid_out(tmp_path / "m.gguf")
    with pytest.raises(InvalidModel, match=r"is not what its name says: no \.safetensors file"):
        laid_out(tmp_path / "m.safetensors")


async def test_a_name_of_a_package_is_refused(folder, tmp_path):
    """A script that would hide what it imports is refused; dots in a name are no packages."""
    (folder / "modelserver.py").write_text("")
    (folder / "my.handler.py").write_text("")

    with pytest.raises(InvalidModel, match="another name"):
        await opened("modelserver.py", folder, tmp_path / "work")
    assert (await opened("my.handler.py", folder, tmp_path / "work")).manifest.handler == "my_handler.py"
