"""The real TorchServe and modelserver, side by side: the same archives, the same requests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.differential.archives import HERE, MODEL_CODE, build_store
from tests.differential.chapters import SERVERS, chapters
from tests.differential.playing import TORCHSERVES_ROLLBACK, play
from tests.differential.record import NAMES, RECORDED, names_of, pack_arguments
from tests.differential.replay import modelserver, recorded, unexplained
from tests.differential.test_differential_recorded import comparable, contents
from tests.differential.torchserve import VARIABLE, missing, torchserve
from tests.e2e.serving import ROOT

from modelserver.tools.aliases import install
from modelserver.tools.migrate.comparison import masked, mismatches

ENVIRONMENT = os.environ.get(VARIABLE)
REASON = missing(ENVIRONMENT)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(900),
]


@pytest.mark.parametrize("server", SERVERS)
def test_both_answer_alike(tmp_path, server):
    """TorchServe answers as recorded, and modelserver likewise but for the explained differences."""
    store = tmp_path / "store"
    build_store(store)
    names = [chapter for chapter in chapters() if chapter.server == server]
    with torchserve(Path(ENVIRONMENT or ""), store, tmp_path / "theirs", SERVERS[server]) as addresses:
        torchserves = {
            chapter.name: {
                name: masked(answer)
                for name, answer in play(chapter, addresses, TORCHSERVES_ROLLBACK).items()
            }
            for chapter in names
        }
    result = {}
    with modelserver(store, tmp_path / "ours", server) as addresses:
        for chapter in names:
            for name, wrong in unexplained(chapter, torchserves[chapter.name], addresses).items():
                result[f"{chapter.name}/{name}"] = wrong
    assert result == {}
    stale = {
        f"{chapter.name}/{name}": mismatches(answer, torchserves[chapter.name][name])
        for chapter in names
        for name, answer in recorded(chapter).items()
        if mismatches(answer, torchserves[chapter.name][name])
    }
    assert stale == {}


def test_the_names_are_as_recorded():
    """The public names of the package ``ts`` are those that ours were compared with (reference 13)."""
    recording = json.loads((RECORDED / f"{NAMES}.json").read_text("utf-8"))
    assert json.loads(names_of(Path(ENVIRONMENT or ""))) == recording


PROGRAMS = (
    [str(Path(ENVIRONMENT or "").resolve() / "bin" / "torch-model-archiver")],
    [sys.executable, "-m", "modelserver.tools.archiver"],
)
SMALL = ["--model-name", "m", "-v", "1", "--handler", str(MODEL_CODE / "plain.py")]


@pytest.mark.parametrize(
    ("archive_format", "suffix"),
    [("default", ".mar"), ("zip-store", ".mar"), ("tgz", ".tar.gz"), ("no-archive", "")],
)
def test_archivers_pack_alike(tmp_path, archive_format, suffix):
    """torch-model-archiver and modelserver-archive take the same command line and pack the same."""
    made = []
    for number, program in enumerate(PROGRAMS):
        folder = tmp_path / str(number)
        folder.mkdir()  # only modelserver-archive would make it
        command = [*program, *pack_arguments("same"), "--archive-format", archive_format]
        subprocess.run([*command, "--export-path", str(folder)], check=True, capture_output=True)
        made.append(comparable(contents(folder / f"same{suffix}")))

    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 2),
        (["--help"], 0),
        (SMALL[:4], 2),
        ([*SMALL, "--archive-format", "rar"], 2),
        ([*SMALL, "--runtime", "java"], 2),
        ([*SMALL, "--what"], 2),
        (SMALL, 0),
        ([*SMALL, "--runtime", "python3"], 0),
        (["--model-name", "a b", *SMALL[2:]], 1),
        (["--model-name", "7-x_.y", *SMALL[2:]], 0),
        (["--model-name", "_x", *SMALL[2:]], 1),
        ([*SMALL[:4], "--handler", "absent.py"], 1),
        ([*SMALL[:4], "--handler", str(MODEL_CODE / "entry") + ":go"], 0),
        ([*SMALL[:4], "--handler", "image_classifier"], 0),
        ([*SMALL, "--serialized-file", "absent.pt"], 1),
        ([*SMALL, "--extra-files", "absent.txt"], 1),
        ([*SMALL, "--extra-files", "absent*"], 0),
        ([*SMALL, "--requirements-file", "absent.txt"], 1),
        ([*SMALL, "--config-file", "absent.yaml"], 1),
        ([*SMALL, "--export-path", str(MODEL_CODE / "plain.py")], 1),
    ],
)
def test_archivers_end_alike(tmp_path, arguments, status):
    """Both take and refuse the same command lines, with the same exit status."""
    ended = []
    for number, program in enumerate(PROGRAMS):
        folder = tmp_path / str(number)
        folder.mkdir()
        ended.append(subprocess.run([*program, *arguments], cwd=folder, capture_output=True, check=False))

    assert [done.returncode for done in ended] == [status, status], [done.stderr[-300:] for done in ended]


def test_archivers_overwrite_alike(tmp_path):
    """An archive that is there is kept, unless ``--force`` is given, with the same words."""
    reply = []
    for number, program in enumerate(PROGRAMS):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "m.mar").write_bytes(b"old")
        saved = subprocess.run([*program, *SMALL], cwd=folder, capture_output=True, text=True, check=False)
        assert (saved.returncode, (folder / "m.mar").read_bytes()) == (1, b"old")
        reply.append("already exists.\nPlease specify --force/-f option to overwrite" in saved.stderr)
        subprocess.run([*program, *SMALL, "-f"], cwd=folder, capture_output=True, check=True)
        assert (folder / "m.mar").read_bytes() != b"old"

    assert reply == [True, True]


def test_python_apis_do_alike(tmp_path):
    """Scripts that call torch-model-archiver from Python get the same of ours: values, errors, archives."""
    aliases = install(tmp_path / "bin")[-1].parent
    roots = [str(aliases), str(ROOT / "app"), str(ROOT / "handlers")]
    pythons = ((str(Path(ENVIRONMENT or "").resolve() / "bin" / "python"), []), (sys.executable, roots))
    document, made = [], []
    for number, (python, paths) in enumerate(pythons):
        folder = tmp_path / str(number)
        (folder / "extra" / "deep").mkdir(parents=True)
        for name in ("handler.py", "weights.pt", "extra/a.txt", "extra/deep/b.txt"):
            (folder / name).write_text("# content\n")
        script = [python, "-W", "ignore", str(HERE / "archiver_calls.py"), str(folder)]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(script, env=variables, capture_output=True, text=True, check=True)
        document.append(json.loads(done.stdout.replace(str(folder), "<folder>")))
        archives = ("default.mar", "store.mar", "tgz.tar.gz", "folder", "patched.mar")
        made.append([comparable(contents(folder / name)) for name in archives])
        made[-1].append(contents(folder / "packed.mar"))

    assert {name for name in document[0] if document[0][name] != document[1][name]} == {
        "several"
    }  # in our own words
    assert document[1]["several"]["raises"] == document[0]["several"]["raises"]
    assert made[0] == made[1]
