import json
import re
import shlex
import tarfile
import zipfile
from pathlib import Path

import pytest

from modelserver.models.archives.archive import open_archive
from modelserver.models.archives.manifest import parse_manifest
from modelserver.tools.archiver import ArchiveConfig, ArchiverError, build_archive, main, make_parser

SPECIAL = (
    "Model name contains special characters.\n"
    "The allowed regular expression filter for model name is: ^[A-Za-z0-9][A-Za-z0-9_\\-.]*$"
)
FORMATS = "default, zip-store, tgz, no-archive"


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A working directory with a model in it, and a fixed time."""
    for name, text in {
        "src/handler.py": "def handle(data, context):\n    return data\n",
        "src/model.py": "class Net: ...\n",
        "src/model.pt": "weights",
        "src/requirements.txt": "numpy\n",
        "src/model-config.yaml": "minWorkers: 1\n",
        "extra/index_to_name.json": "{}",
        "extra/.hidden": "kept",
        "extra/sub/a.txt": "a",
        "extra/sub/deep/b.txt": "b",
        "extra/__pycache__/x.pyc": "left out",
        "extra/__MACOSX/x": "left out",
        "extra/.git/config": "left out",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1595638088")
    return tmp_path


def config(**changes):
    return ArchiveConfig(**{"model_name": "noop", "handler": "src/handler.py", "version": "1.0", **changes})


def names(archive):
    return set(zipfile.ZipFile(archive).namelist())


def manifest_of(archive):
    with zipfile.ZipFile(archive) as opened:
        return json.loads(opened.read("MAR-INF/MANIFEST.json"))


def test_command_writes_an_archive(workplace, capsys):
    flags = """
        --model-name noop --version 2.0 --handler src/handler.py:handle --serialized-file src/model.pt
        --model-file src/model.py --extra-files "extra, src/model-config.yaml" -r src/requirements.txt
        -c src/model-config.yaml --runtime python3 --export-path new/store
    """

    assert main(shlex.split(flags)) == 0
    assert capsys.readouterr().out == "new/store/noop.mar\n"
    archive = workplace / "new" / "store" / "noop.mar"
    own = {"handler.py", "model.pt", "model.py", "requirements.txt", "model-config.yaml"}
    extra = {"index_to_name.json", ".hidden", "sub/a.txt", "sub/deep/b.txt"}
    assert names(archive) == {"MAR-INF/MANIFEST.json", *own, *extra}
    manifest = manifest_of(archive)
    assert manifest.pop("archiverVersion")
    assert manifest == {
        "createdOn": "25/07/2020 00:48:08",
        "runtime": "python3",
        "model": {
            "modelName": "noop",
            "serializedFile": "model.pt",
            "handler": "handler.py:handle",
            "modelFile": "model.py",
            "modelVersion": "2.0",
            "requirementsFile": "requirements.txt",
            "configFile": "model-config.yaml",
        },
    }
    assert b'\n  "runtime"' in zipfile.ZipFile(archive).read("MAR-INF/MANIFEST.json")
    assert list(archive.parent.iterdir()) == [archive]


@pytest.mark.parametrize(
    ("archive_format", "name"),
    [("default", "noop.mar"), ("zip-store", "noop.mar"), ("tgz", "noop.tar.gz"), ("no-archive", "noop")],
)
def test_every_format_opens_in_the_server(workplace, archive_format, name):
    parts = {"serialized_file": Path("src/model.pt"), "config_file": "src/model-config.yaml"}
    parts |= {"extra_files": "extra", "export_path": "out"}
    path = build_archive(config(archive_format=archive_format, **parts))
    archive = open_archive(path, path.name, workplace / "work")

    assert path.name == name
    assert (archive.model_dir / "model.pt").read_text() == "weights"
    assert (archive.model_dir / "sub/deep/b.txt").read_text() == "b"
    assert archive.manifest.handler == "handler.py"
    assert archive.config_text == "minWorkers: 1\n"
    if name == "noop.mar":
        kind = zipfile.ZIP_STORED if archive_format == "zip-store" else zipfile.ZIP_DEFLATED
        assert {info.compress_type for info in zipfile.ZipFile(path).infolist()} == {kind}
    elif name == "noop.tar.gz":
        with tarfile.open(path) as opened:
            assert {"noop/MAR-INF/MANIFEST.json", "noop/handler.py"} < set(opened.getnames())


@pytest.mark.parametrize("archive_format", ["default", "zip-store", "tgz"])
def test_same_input_makes_the_same_archive(archive_format):
    first, second = (
        build_archive(config(archive_format=archive_format, export_path=folder, extra_files=extra))
        for folder, extra in (("a", "extra,src/model.py"), ("b", "src/model.py,extra"))
    )

    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("handler", "stored"),
    [
        ("src/handler.py", "handler.py"),
        ("src/handler", "handler"),
        ("src/handler:handle", "handler:handle"),
        ("src/handler.py:handle", "handler.py:handle"),
        ("./src/handler.py", "handler.py"),
    ],
)
def test_handler_file_is_packed(handler, stored, monkeypatch):
    """Without SOURCE_DATE_EPOCH the manifest has the time in TorchServe's format."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    archive = build_archive(config(handler=handler))

    assert "handler.py" in names(archive)
    assert parse_manifest(json.dumps(manifest_of(archive)).encode()).handler == stored
    assert re.fullmatch(r"\d\d/\d\d/20\d\d \d\d:\d\d:\d\d", str(manifest_of(archive)["createdOn"]))


@pytest.mark.parametrize("handler", ["image_classifier", "base_handler", "vllm_handler", "trt_llm_handler"])
def test_named_handlers_are_not_packed(handler, caplog):
    """That of TorchServe alone is packed for it with a warning; the help offers what the server has."""
    archive = build_archive(config(handler=handler, serialized_file="src/model.pt"))

    assert names(archive) == {"MAR-INF/MANIFEST.json", "model.pt"}
    foreign = "trt_llm_handler is a TorchServe handler that modelserver does not have"
    assert (foreign in caplog.text) == (handler == "trt_llm_handler")
    assert "trt_llm_handler" not in make_parser().format_help()
    assert "densenet_handler" in make_parser().format_help()


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("extra/*.json", {"index_to_name.json"}),
        ("extra/s?b", {"a.txt", "deep/b.txt"}),
        ("src/model.[p]*", {"model.pt", "model.py"}),
        ("extra/.hidden,,src/model.pt,", {".hidden", "model.pt"}),
        ("extra/none*", set()),
        ("extra/.git", {"config"}),
    ],
)
def test_extra_files_are_packed_flat(extra, expected):
    archive = build_archive(config(extra_files=extra))
    assert names(archive) == {"MAR-INF/MANIFEST.json", "handler.py", *expected}


def test_later_files_replace_earlier_ones(workplace, caplog):
    (workplace / "extra" / "handler.py").write_text("later = 1\n")

    archive = build_archive(config(extra_files="extra/handler.py"))

    assert zipfile.ZipFile(archive).read("handler.py") == b"later = 1\n"
    assert "extra/handler.py replaces src/handler.py" in caplog.text


def test_manifest_and_links_among_extra_files_are_not_packed(workplace):
    build_archive(config(archive_format="no-archive", export_path="old"))
    archive = build_archive(config(model_name="new", extra_files="old/noop"))

    assert parse_manifest(json.dumps(manifest_of(archive)).encode()).model_name == "new"
    assert zipfile.ZipFile(archive).namelist() == ["MAR-INF/MANIFEST.json", "handler.py"]
    (workplace / "extra" / "again").symlink_to(workplace / "extra")
    with pytest.raises(ArchiverError, match="is a link to a directory that contains it"):
        build_archive(config(extra_files="extra"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({"model_name": name}, SPECIAL)
            for name in ("no/op", "-x", ".x", "", "a b", "a\n", "ä", "a:b", "../a")
        ),
        (
            {"export_path": "src/model.pt"},
            "Given export-path src/model.pt is not a directory. Point to a valid export-path directory.",
        ),
        ({"extra_files": "none.txt"}, "File does not exist: none.txt"),
        ({"handler": "none.py"}, "File does not exist: none.py"),
        ({"handler": "src/none:go"}, "File does not exist: src/none.py"),
        ({"serialized_file": "none.pt"}, "File does not exist: none.pt"),
        ({"runtime": "java"}, "Invalid runtime 'java': choose from python, python3, LSP."),
        ({"archive_format": "rar"}, f"Invalid archive format 'rar': choose from {FORMATS}."),
    ],
    ids=repr,
)
def test_mistakes_have_the_references_words(workplace, changes, message):
    with pytest.raises((ArchiverError, FileNotFoundError)) as caught:
        build_archive(config(**changes))

    assert str(caught.value) == message
    assert not list(workplace.glob("*.mar"))


@pytest.mark.parametrize("archive_format", ["default", "tgz", "no-archive"])
def test_overwriting_needs_force(archive_format, caplog):
    path = build_archive(config(archive_format=archive_format))

    with pytest.raises(ArchiverError) as caught:
        build_archive(config(archive_format=archive_format))
    again = build_archive(config(archive_format=archive_format, force=True))

    assert str(caught.value) == (
        f"{path} already exists.\n"
        "Please specify --force/-f option to overwrite the model archive output file.\n"
        "See -h/--help for more details."
    )
    assert again == path
    assert f"Overwriting {path} ..." in caplog.text


def test_force_does_not_replace_other_directories(workplace):
    (workplace / "noop").mkdir()
    (workplace / "noop" / "thesis.txt").write_text("years")

    with pytest.raises(ArchiverError, match="is not overwritten"):
        build_archive(config(archive_format="no-archive", force=True))
    assert (workplace / "noop" / "thesis.txt").exists()


def test_failure_keeps_the_old_archive(workplace, monkeypatch):
    """F56: when writing fails the existing archive stays and nothing partial is left."""
    path = build_archive(config())
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("modelserver.tools.archiver.shutil.copyfileobj", full)

    with pytest.raises(OSError, match="No space left"):
        build_archive(config(force=True))
    assert path.read_bytes() == before
    assert not list(workplace.glob(".*.part"))


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"handler": "image_classifier", "model_file": "src/model.py"}, ""),
        ({"handler": "image_classifier"}, "image_classifier finds no model"),
        ({"serialized_file": "empty.pt"}, "empty.pt is empty"),
        ({"model_file": "broken.py"}, "broken.py is not valid Python"),
        ({"model_file": "weights.pt"}, "weights.pt is not Python source, as --model-file"),
        ({"config_file": "broken.yaml"}, "broken.yaml is not valid YAML"),
        ({"extra_files": "case"}, "README and readme differ in upper and lower case only"),
        ({"extra_files": "none*"}, "No file matches the pattern none*"),
    ],
)
def test_probable_mistakes_are_warnings(workplace, caplog, changes, warning):
    """Mistakes that would fail when the model loads are warnings, and the archive is written."""
    for name, text in {
        "empty.pt": "",
        "broken.py": "def",
        "weights.pt": "PK\x03\x04\0",
        "broken.yaml": "a: [",
        "case/readme": "",
        "case/README": "",
    }.items():
        (workplace / name).parent.mkdir(exist_ok=True)
        (workplace / name).write_text(text)

    assert build_archive(config(**changes)).exists()
    assert warning in caplog.text
    assert bool(caplog.text) == bool(warning)


def test_progress_counts_every_byte():
    steps = []
    made = config(extra_files="extra", archive_format="tgz")
    path = build_archive(made, lambda *step: steps.append(step))
    with tarfile.open(path) as opened:
        size = sum(member.size for member in opened)
    assert steps == sorted(steps)
    assert steps[-1] == (size, size)


def test_mistakes_are_one_message_and_a_status(capsys):
    flags = ["--model-name", "noop", "-v", "1", "--handler", "none.py"]
    for wrong in ([], flags[:2], [*flags, "--archive-format", "rar"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
        assert "usage: modelserver-archive" in capsys.readouterr().err

    assert main(flags) == 1
    assert capsys.readouterr() == ("", "File does not exist: none.py\n")


def test_large_files_show_progress_on_a_terminal(workplace, monkeypatch, capsys):
    monkeypatch.setattr("modelserver.tools.archiver._SHOW_PROGRESS_FROM", 1)
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert main(["--model-name", "noop", "-v", "1", "--handler", "src/handler.py"]) == 0

    captured = capsys.readouterr()
    assert captured.out == "noop.mar\n"
    assert "noop" in captured.err


def test_a_workflow_is_packed_as_torch_workflow_archiver_packs_it(workplace, capsys):
    for name in ("flow.yaml", "functions.py", "notes.txt"):
        (workplace / name).write_text("x = 1\n" if name.endswith(".py") else "a: 1\n")
    arguments = ["workflow", "--workflow-name", "flow", "--spec-file", str(workplace / "flow.yaml")]
    arguments += ["--handler", str(workplace / "functions.py"), "--export-path", str(workplace / "store")]
    arguments += ["--extra-files", str(workplace / "notes.txt")]
    assert main(arguments) == 0

    archive = workplace / "store" / "flow.war"
    assert capsys.readouterr().out == f"{archive}\n"
    assert names(archive) == {"flow.yaml", "functions.py", "notes.txt", "WAR-INF/MANIFEST.json"}
    manifest = json.loads(zipfile.ZipFile(archive).read("WAR-INF/MANIFEST.json"))
    assert list(manifest) == ["createdOn", "workflow", "archiverVersion"]
    workflow = {"workflowName": "flow", "specFile": "flow.yaml", "handler": "functions.py"}
    assert manifest["workflow"] == workflow
    assert main(arguments) == 1
    assert "overwrite the workflow archive output file" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert list(archive.parent.iterdir()) == [archive]


def test_workflows_that_cannot_be_packed(workplace, capsys):
    values = ["workflow", "--spec-file", str(workplace / "absent.yaml"), "--export-path", str(workplace)]
    assert main([*values, "--workflow-name", "a b"]) == 1
    assert "Workflow name contains special characters." in capsys.readouterr().err
    assert main([*values, "--workflow-name", "a"]) == 1
    assert "File does not exist" in capsys.readouterr().err
