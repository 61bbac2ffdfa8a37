import os
import subprocess
import sys

import pytest

from modelserver import __version__
from modelserver.tools.aliases import AliasError, install, is_alias, main, remove, script

NAMES = ["torchserve", "torch-model-archiver", "torch-workflow-archiver"]
FILES = ["modelserver_aliases/model_archiver.py", "modelserver_aliases/ts.py"]


def run_python(folders, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["app", "handlers", *folders])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_aliases_are_written_and_run(tmp_path, capsys):
    assert main(["install", str(tmp_path / "new" / "bin")]) == 0

    folder = tmp_path / "new" / "bin"
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [str(folder / name) for name in (*NAMES, *FILES)]
    assert captured.err == f"{folder} is not on the PATH.\n" or "On this PATH" in captured.err
    version, archiver, workflows = (
        subprocess.run([folder / name, *arguments], capture_output=True, text=True, check=False)
        for name, arguments in (
            ("torchserve", ["--version"]),
            ("torch-model-archiver", ["--model-name", "a b", "-v", "1", "--handler", "x"]),
            ("torch-workflow-archiver", ["--workflow-name", "a b", "--spec-file", "x"]),
        )
    )
    assert (version.returncode, version.stdout) == (0, f"modelserver Version is {__version__}\n")
    for name, done in (("Model", archiver), ("Workflow", workflows)):
        assert done.returncode == 1
        assert done.stderr.splitlines()[0] == f"{name} name contains special characters."


def test_server_gets_the_name_of_the_command(tmp_path):
    """The interpreter may lie anywhere."""
    program = tmp_path / "it's a folder" / "python"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho $MODELSERVER_STARTED_AS $@\n")
    program.chmod(0o755)
    alias = tmp_path / "torchserve"
    alias.write_text(script("torchserve", str(program)))

    done = subprocess.run(["sh", alias, "--start"], capture_output=True, text=True, check=True)

    assert done.stdout == "torchserve -m modelserver --start\n"


def test_install_may_be_repeated_and_undone(tmp_path):
    (tmp_path / "other").write_text("mine")

    assert install(tmp_path) == install(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in remove(tmp_path)] == [*NAMES, *FILES]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert remove(tmp_path) == []
    beside = install(tmp_path)[-1].with_name("other.py")
    beside.write_text("mine")
    remove(tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / "other", beside}


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
@pytest.mark.parametrize("name", NAMES)
def test_a_real_torchserve_stays(tmp_path, name, kind):
    """What a link leads to stays even with ``--force``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    real = folder / name if kind == "file" else tmp_path / "real"
    if kind != "file":
        (folder / name).symlink_to(real)
    if kind != "dangling link":
        real.write_text("#!/usr/bin/python\nfrom ts.model_server import start\n")

    with pytest.raises(AliasError, match="perhaps the real TorchServe"):
        install(folder)
    assert [path.name for path in folder.iterdir()] == [name]

    install(folder, force=True)
    assert [is_alias(folder / each) for each in NAMES] == [True] * len(NAMES)
    assert kind != "link" or "ts.model_server" in real.read_text()
    assert kind != "dangling link" or not real.exists()


def test_model_archiver_can_be_imported(tmp_path):
    """Where the folder is in PYTHONPATH, and nowhere else; what scripts patch in it is what is called."""
    folder = str(install(tmp_path)[-1].parent)
    (tmp_path / "h.py").write_text("def handle(data, context): return data\n")
    (tmp_path / "use.py").write_text(SCRIPT)
    use = (str(tmp_path / "use.py"), str(tmp_path))

    assert "ModuleNotFoundError: No module named 'model_archiver'" in run_python([], *use).stderr
    assert run_python([folder], *use).stderr == ""
    assert sorted(path.name for path in tmp_path.glob("*.mar")) == ["first.mar", "second.mar"]


SCRIPT = """
import argparse, sys
from unittest import mock

import model_archiver
from model_archiver import ModelArchiver, ModelArchiverConfig
from model_archiver.arg_parser import ArgParser
from model_archiver.manifest_components.manifest import Manifest
from model_archiver.model_archiver_error import ModelArchiverError
from model_archiver.model_packaging import generate_model_archive

config = ModelArchiverConfig("first", sys.argv[1] + "/h.py", "1.0", export_path=sys.argv[1])
ModelArchiver.generate_model_archive(config)
try:
    ModelArchiver.generate_model_archive(config)
except ModelArchiverError as error:
    assert "already exists" in str(error)
else:
    sys.exit("written twice")
args = argparse.Namespace(**{**vars(config), "model_name": "second"})
with mock.patch("model_archiver.arg_parser.ArgParser.export_model_args_parser", return_value=args):
    generate_model_archive()
assert model_archiver.model_packaging.ArgParser is ArgParser
"""


def test_directories_are_never_replaced(tmp_path, capsys):
    """A directory of an alias's name, or a file in place of the directory, is a message and status 1."""
    (tmp_path / "torchserve").mkdir()
    (tmp_path / "file").write_text("")

    assert main(["install", str(tmp_path), "--force"]) == 1
    assert main(["install", str(tmp_path / "file")]) == 1

    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path / 'torchserve'} is a directory.",
        f"{tmp_path / 'file'} is not a directory.",
    ]


def test_other_commands_on_the_path_are_reported(tmp_path, monkeypatch, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    install(first)
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (first, second))))

    assert main(["install", str(second)]) == 0

    assert capsys.readouterr().err.splitlines() == [
        f"On this PATH {name} is {first / name}." for name in NAMES
    ]


@pytest.mark.parametrize("arguments", [[], ["install"], ["explode", "x"]])
def test_wrong_command_lines_of_aliases_exit_with_2(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2


def test_the_launcher_of_language_models_runs_by_its_name(tmp_path):
    """``python -m ts.llm_launcher`` is ``modelserver llm``; other modules of ``ts`` are no programs."""
    folders = [str(install(tmp_path)[-1].parent)]
    launched = run_python(folders, "-m", "ts.llm_launcher", "--model_id", "m", "--engine", "trt_llm")

    assert (launched.returncode, launched.stderr) == (1, "--engine=trt_llm is not offered: vllm is\n")
    assert "No code object available for ts.context" in run_python(folders, "-m", "ts.context").stderr
