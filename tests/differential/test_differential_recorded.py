"""modelserver answers as the real TorchServe 0.12.0 was recorded to, but for the explained differences."""

import contextlib
import json
import tarfile
import zipfile
from collections import Counter

import pytest
from tests.differential.archives import SAVED_SUFFIX, TORCHSERVES, build_store
from tests.differential.chapters import chapters
from tests.differential.differences import ANSWERS, all_singles, expected_of
from tests.differential.replay import modelserver, recorded, unexplained

from modelserver.tools.migrate.rules import RULES

CHAPTERS = [
    pytest.param(chapter, id=chapter.name, marks=[] if chapter.plain else [pytest.mark.slow])
    for chapter in chapters()
]


class Servers:
    """Running servers by name, each started when a chapter first needs it."""

    def __init__(self, store, folder, running):
        self._store = store
        self._folder = folder
        self._running = running
        self._addresses = {}

    def addresses(self, name):
        if name not in self._addresses:
            started = modelserver(self._store, self._folder / name, name)
            self._addresses[name] = self._running.enter_context(started)
        return self._addresses[name]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("differential") / "store"
    build_store(folder)
    return folder


@pytest.fixture(scope="module")
def servers(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("differential-servers")
    with contextlib.ExitStack() as running:
        yield Servers(store, folder, running)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_answers_are_as_recorded(chapter, servers):
    """Statuses, headers and bodies are TorchServe's, or what the explained difference says."""
    result = unexplained(chapter, recorded(chapter), servers.addresses(chapter.server))
    assert result == {}, "\n".join(f"{name}: " + "\n  ".join(wrong) for name, wrong in result.items())


def test_every_rule_explains_something():
    """A rule that changes no recorded answer is stale; so is a single one that changes nothing."""
    used = Counter()
    for chapter in chapters():
        torchserves = recorded(chapter)
        for call in chapter.calls:
            used.update(rule.name for rule in expected_of(chapter, call, torchserves[call.name])[1])

    assert [rule.name for rule in RULES if not used[rule.name]] == []


def test_single_differences_are_of_calls_there_are():
    """Each names a call of a chapter, only one rule is about it, and its answer differs."""
    answers = {f"{c.name}/{name}": answer for c in chapters() for name, answer in recorded(c).items()}

    assert [name for name, change in all_singles().items() if change(answers[name]) == answers[name]] == []
    assert len(all_singles()) == sum(map(len, ANSWERS.values()))


def test_there_are_many():
    """The comparison is broad enough to be trusted."""
    assert sum(len(chapter.calls) for chapter in chapters()) >= 400


def contents(archive):
    """The files of an archive, without the top folder that tar archives have."""
    if archive.is_dir():
        return {
            str(path.relative_to(archive)): path.read_bytes()
            for path in archive.rglob("*")
            # Python adds its own to a folder that was served.
            if path.is_file() and path.parent.name != "__pycache__"
        }
    if archive.name.removesuffix(SAVED_SUFFIX).endswith(".tar.gz"):
        with tarfile.open(archive) as opened:
            members = [member for member in opened if member.isfile()]
            return {m.name.partition("/")[2]: opened.extractfile(m).read() for m in members}  # type: ignore[union-attr]
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/")}


def comparable(files):
    """The manifest without time, version and name, and the other files."""
    rest = dict(files)
    manifest = json.loads(rest.pop("MAR-INF/MANIFEST.json"))
    del manifest["createdOn"], manifest["archiverVersion"], manifest["model"]["modelName"]
    return manifest, rest


@pytest.mark.parametrize(
    ("torchserves", "ours"),
    [
        ("theirs_default.mar", "ours_default.mar"),
        ("theirs_store.mar", "ours_store.mar"),
        ("theirs_tgz.tar.gz", "ours_tgz.tar.gz"),
        ("theirs_folder", "ours_folder"),
    ],
)
def test_both_archivers_pack_the_same(store, torchserves, ours):
    """Of the same files modelserver-archive makes what torch-model-archiver made, in each format.

    That each server loads both is in the chapter ``layouts``.
    """
    assert (TORCHSERVES / f"{torchserves}{SAVED_SUFFIX}").exists()
    assert comparable(contents(store / torchserves)) == comparable(contents(store / ours))
