"""The Python API of torch-model-archiver, under our own name (reference 11.1)."""

import argparse
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from unittest import mock

import pytest

from modelserver import __version__
from modelserver.model_archiver import ModelArchiver, ModelArchiverConfig, version
from modelserver.model_archiver import model_packaging_utils as utils
from modelserver.model_archiver.arg_parser import ArgParser
from modelserver.model_archiver.manifest_components.manifest import Manifest, RuntimeType
from modelserver.model_archiver.manifest_components.model import Model
from modelserver.model_archiver.model_archiver_error import ModelArchiverError
from modelserver.model_archiver.model_packaging import generate_model_archive, package_model
from modelserver.model_archiver.model_packaging_utils import ModelExportUtils
from modelserver.model_archiver.names import MODULES, offer
from modelserver.tools.archiver import ArchiveConfig

FIELDS = (
    "model_name handler version serialized_file model_file extra_files runtime export_path archive_format"
    " force requirements_file config_file"
)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A working directory with the parts of a model, and a fixed time."""
    for name in ("handler.py", "weights.pt", "extra/a.txt", "extra/deep/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# content\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1595638088")
    return tmp_path


def config(**changes):
    fields = {"model_name": "noop", "handler": "handler.py", "version": "1.0"}
    parts = {"serialized_file": "weights.pt", "extra_files": "extra"}
    return ModelArchiverConfig(**{**fields, **parts, **changes})


def content(archive):
    with zipfile.ZipFile(archive) as opened:
        return set(opened.namelist()), json.loads(opened.read("MAR-INF/MANIFEST.json"))


ALL = {"handler.py", "weights.pt", "a.txt", "deep/b.txt", "MAR-INF/MANIFEST.json"}
CREATED = "25/07/2020 00:48:08"
MODEL = {"modelName": "noop", "serializedFile": "weights.pt", "handler": "handler.py", "modelVersion": "1.0"}


def test_an_archive_is_made_from_python(workplace):
    made = config()

    assert list(vars(made)) == FIELDS.split()
    assert made.export_path == str(workplace)
    assert (made.runtime, made.archive_format, made.force) == ("python", "default", False)
    ModelArchiver.generate_model_archive(made)
    names, manifest = content(workplace / "noop.mar")
    assert names == ALL
    common = {"createdOn": CREATED, "runtime": "python", "archiverVersion": __version__}
    assert manifest == {**common, "model": MODEL}


def test_a_configuration_makes_several_archives(workplace):
    made = config(serialized_file=Path("weights.pt"), export_path=workplace / "out")
    formats = {"zip-store": "noop.mar", "tgz": "noop.tar.gz", "no-archive": "noop"}
    for made.archive_format, name in formats.items():
        ModelArchiver.generate_model_archive(made)
        assert (workplace / "out" / name).exists()

    with tarfile.open(workplace / "out" / "noop.tar.gz") as opened:
        assert {name.removeprefix("noop/") for name in opened.getnames()} == ALL


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model_name": "a b"}, ModelArchiverError, r"^Model name contains special characters\.\n"),
        ({"extra_files": "absent"}, FileNotFoundError, "^File does not exist: absent$"),
    ],
)
def test_wrong_configurations_are_refused(changes, error, words):
    """The errors are torch-model-archiver's; an archive that no server would take is one more."""
    with pytest.raises(error, match=words):
        ModelArchiver.generate_model_archive(config(**changes))


def test_the_command_line_is_read(workplace, monkeypatch):
    """Without a configuration ``sys.argv`` says what to pack. Test suites put the arguments in the parser's
    place, as a plain namespace with more or fewer of them.
    """
    flags = ["--model-name", "m", "-v", "2", "--handler", "handler.py", "--runtime", "python3"]
    monkeypatch.setattr(sys, "argv", ["x", *flags])
    parsed = ArgParser.export_model_args_parser()
    assert isinstance(parsed, ModelArchiverConfig)
    assert (parsed.model_name, parsed.version, parsed.runtime) == ("m", "2", "python3")
    generate_model_archive()
    assert content(workplace / "m.mar")[1]["model"]["modelVersion"] == "2"

    args = argparse.Namespace(model_name="patched", handler="handler.py", version="1", convert=False)
    with mock.patch.object(ArgParser, "export_model_args_parser", return_value=args):
        generate_model_archive()
    assert content(workplace / "patched.mar")[0] == {"handler.py", "MAR-INF/MANIFEST.json"}


def test_manifests_are_made_of_parts(workplace):
    """One that is passed is written as it is."""
    package_model(config(), '{"mine": true}')
    assert content(workplace / "noop.mar") == (ALL, {"mine": True})
    model = Model("m", None, "h.py", model_version="1")
    manifest = Manifest(RuntimeType.PYTHON3, model)

    assert str(model) == repr(model) == '{"modelName": "m", "handler": "h.py", "modelVersion": "1"}'
    common = {"createdOn": CREATED, "runtime": "python3", "archiverVersion": __version__}
    assert json.loads(str(manifest)) == {**common, "model": model.model_dict}
    assert Manifest("LSP", model).runtime is RuntimeType.LSP
    with pytest.raises(ValueError, match="java"):
        Manifest("java", model)


def test_steps_make_the_same_archive(workplace):
    ModelArchiver.generate_model_archive(config(archive_format="zip-store"))
    folder = ModelExportUtils.copy_artifacts(
        "noop", "python", handler="handler.py", serialized_file="weights.pt", extra_files="extra"
    )
    ModelExportUtils.make_dir("steps")
    text = ModelExportUtils.generate_manifest_json(config())
    for _ in range(2):  # over what is there
        ModelExportUtils.archive("steps", "noop", folder, text, "zip-store")

    assert (workplace / "steps" / "noop.mar").read_bytes() == (workplace / "noop.mar").read_bytes()


def test_smaller_steps_can_be_called(workplace):
    assert json.loads(str(ModelExportUtils.generate_model(config()))) == MODEL
    assert ModelExportUtils.find_unique(["a.pt", "b.onnx"], ".onnx") == "b.onnx"
    assert ModelExportUtils.find_unique(["a.pt"], ".onnx") is None
    with pytest.raises(ModelArchiverError, match=r"Only one \.pt file"):
        ModelExportUtils.find_unique(["a.pt", "b.pt"], ".pt")
    ModelExportUtils.validate_inputs("m", workplace)
    with pytest.raises(ModelArchiverError, match="not a directory"):
        ModelExportUtils.validate_inputs("m", "absent")
    with pytest.raises(ModelArchiverError, match="special characters"):
        ModelExportUtils.check_model_name_regex_or_exit("m!")
    ModelExportUtils.clean_temp_files([workplace / "weights.pt"])
    assert not (workplace / "weights.pt").exists()


def test_keys_that_are_not_known_do_not_count():
    class Arguments:
        model_name = "m"

        def __init__(self, **received):
            self.__dict__.update(received)

    args = Arguments(handler="handler.py", version="1", convert=False, **{"requirements-file": "r.txt"})
    made = ModelArchiverConfig.from_args(args)  # type: ignore[arg-type]
    namespace = argparse.Namespace(
        **{"model_name": "m", "handler": "h", "version": "1", "requirements-file": ""}
    )

    assert (made.model_name, made.handler, made.requirements_file) == ("m", "handler.py", None)
    assert ArchiveConfig.from_args(namespace).model_name == "m"
    with pytest.raises(AttributeError, match="version"):
        ModelArchiverConfig.from_args(argparse.Namespace(model_name="m", handler="h"))


def test_parts_under_other_names_are_copied(workplace):
    (workplace / "requirements.txt").write_text("")
    parts = {"requirements-file": "requirements.txt", "source_vocab": "weights.pt"}
    folder = Path(ModelExportUtils.copy_artifacts("noop", "python", handler="handler.py", **parts))

    assert {path.name for path in folder.iterdir()} == {"handler.py", "requirements.txt", "weights.pt"}
    with pytest.raises(ModelArchiverError, match="Invalid runtime 'java'"):
        ModelExportUtils.copy_artifacts("noop", "java", handler="handler.py")


@pytest.mark.parametrize(
    ("received", "archive_format", "path"),
    [
        (None, "default", "/home/user/some-model.mar"),
        ("/home/user/", "default", "/home/user/some-model.mar"),
        (None, "tgz", "/home/user/some-model.tar.gz"),
        (None, "no-archive", "/home/user/some-model"),
    ],
)
def test_the_file_system_may_be_replaced(received, archive_format, path):
    """Suites replace ``os.getcwd``, ``os.remove`` and ``os.path.exists``, which gets the path as text."""
    check = ModelExportUtils.check_mar_already_exists
    with mock.patch("os.getcwd", return_value="/home/user"), mock.patch("os.path.exists") as exists:
        exists.return_value = False
        folder = check("some-model", received, False, archive_format=archive_format)
        assert folder == (received or "/home/user")
        exists.return_value = True
        check("some-model", received, True, archive_format=archive_format)
        with pytest.raises(ModelArchiverError, match="already exists"):
            check("some-model", received, False, archive_format=archive_format)
    assert exists.call_args_list == [mock.call(path)] * 3
    with mock.patch("os.remove") as remove:
        ModelExportUtils.clean_temp_files(["a", "b"])
    assert remove.call_args_list == [mock.call("a"), mock.call("b")]


def test_a_manifest_needs_no_files():
    """It is made of names alone, as test suites do."""
    values = {"model_name": "my-model", "model_file": "my-model/", "serialized_file": "my-model/"}
    values |= {"handler": "a.py::my-awesome-func", "runtime": "python", "version": "1.0"}
    rest = dict.fromkeys(("source_vocab", "extra_files", "config_file", "export_path", "archive_format"))
    args = argparse.Namespace(**values, **rest, requirements_file="r.txt")

    manifest = json.loads(ModelExportUtils.generate_manifest_json(args))
    assert manifest["model"]["handler"] == "a.py::my-awesome-func"


def test_nothing_is_left_behind(workplace, monkeypatch):
    (workplace / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(workplace / "temporary"))
    ModelArchiver.generate_model_archive(config())
    failing = mock.patch.object(ModelExportUtils, "archive", side_effect=OSError("full"))
    with failing, pytest.raises(OSError, match="full"):
        ModelArchiver.generate_model_archive(config(force=True))

    assert list((workplace / "temporary").iterdir()) == []


def test_folders_are_filtered_and_walked(workplace):
    (workplace / "extra" / ".git").mkdir()
    (workplace / "extra" / ".git" / "config").write_text("")
    with utils.zipfile.ZipFile("a.zip", "w") as packed:
        ModelExportUtils.archive_dir("extra", packed, "default", "m")
    with tarfile.open("a.tar", "w") as rolled:
        ModelExportUtils.archive_dir("extra", rolled, "tgz", "m")
    ModelExportUtils.archive_dir("extra", "copy", "no-archive", "m")

    with tarfile.open("a.tar") as rolled:
        names = set(rolled.getnames())

    assert set(packed.namelist()) == {"a.txt", "deep/b.txt"}
    assert names == {"m/a.txt", "m/deep/b.txt"}
    assert Path("copy/deep/b.txt").is_file()
    files = [ModelExportUtils.file_filter(name, {"x.onnx"}) for name in ("x.onnx", "a.pyc", "a.pt")]
    assert files == [False, False, True]
    folders = [ModelExportUtils.directory_filter(name, {"__MACOSX"}) for name in ("__MACOSX", ".git", "a")]
    assert folders == [False, False, True]


def test_constants_have_torchserves_names():
    """Formats, handlers and the manifest's place have TorchServe's names; the version is in a file too."""
    extensions = {"tgz": ".tar.gz", "no-archive": "", "zip-store": ".mar", "default": ".mar"}
    assert utils.archiving_options == extensions
    assert "image_classifier" in utils.model_handlers
    assert f"{utils.MAR_INF}/{utils.MANIFEST_FILE_NAME}" == "MAR-INF/MANIFEST.json"
    assert (Path(utils.__file__).parent / "version.txt").read_text() == f"{__version__}\n"
    assert version.__version__ == __version__


def test_all_modules_are_offered():
    with mock.patch.dict(sys.modules):
        offer("another_name")
        offered = {name for name in sys.modules if name.startswith("another_name")}
        same = {
            sys.modules[name] is sys.modules[name.replace("another_name", "modelserver.model_archiver")]
            for name in offered
        }
    package = Path(sys.modules["modelserver.model_archiver"].__path__[0])
    files = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        for path in package.rglob("*.py")
    }

    assert set(MODULES) == files - {"__init__", "names"}
    assert len(offered) == len(MODULES) + 1
    assert same == {True}
