"""Archives that helper processes read."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest

from modelserver.engine.offload.helpers import Helpers
from modelserver.errors import InvalidModel
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.archives.sources import Located
from modelserver.models.reading import Reader, read_archive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An archive that is a folder."""
    made = tmp_path / "m"
    (made / "MAR-INF").mkdir(parents=True)
    model = {"modelName": "m", "modelVersion": "2.0", "handler": "h.py", "configFile": "c.yaml"}
    (made / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"runtime": "python", "model": model}))
    (made / "h.py").write_text("def handle(data, context):\n    return data\n")
    (made / "c.yaml").write_text("batchSize: 4\nown: [1]\n")
    return made


def test_what_an_archive_says(folder: Path, tmp_path: Path) -> None:
    """Manifest and configuration, without the documents as a whole."""
    contents = read_archive(str(folder), "m", str(tmp_path / "work" / "x"), temporary=False)

    assert (contents.model_dir, contents.temporary) == (str(folder), False)
    assert (contents.manifest.model_name, contents.manifest.raw) == ("m", {})
    assert contents.config is not None
    assert contents.config.problem == ""


def test_a_configuration_that_cannot_be_read_is_a_problem(folder: Path, tmp_path: Path) -> None:
    """The problem is reported with the model; the archive is read nevertheless."""
    (folder / "c.yaml").write_text("[")
    contents = read_archive(str(folder), "m", str(tmp_path / "work" / "x"), temporary=False)

    assert contents.config is not None
    assert contents.config.problem


async def test_operators_script_needs_no_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small script named at the start is read in the server, which takes no process; another is not."""

    async def refuse(*_: object) -> None:
        raise InvalidModel("a helper was asked")

    monkeypatch.setattr(Helpers, "call", refuse)
    script, work = tmp_path / "scripts" / "doubler.py", tmp_path / "work"
    script.parent.mkdir()
    script.write_text("def handle(data, context):\n    return data\n")
    located = Located("doubler.py", script, single=SingleFile(str(script)))
    reader = Reader()
    try:
        archive = await reader.open(located, work, trusted=True)
        with pytest.raises(InvalidModel, match="a helper was asked"):
            await reader.open(located, work)
        (script.parent / "large.py").write_text("#" * (1 << 16))
        with pytest.raises(InvalidModel, match="a helper was asked"):
            await reader.open(located, work, trusted=True)
    finally:
        reader.close()

    assert (archive.manifest.model_name, archive.manifest.handler) == ("doubler", "doubler.py")
    assert archive.temporary
    assert (archive.model_dir / "doubler.py").is_file()


@pytest.mark.parametrize("trusted", [True, False])
async def test_pickles_are_read_if_trusted(trusted: bool, tmp_path: Path) -> None:
    """A setting decides whether they are served, for the operator's own file and that of a registration."""
    (tmp_path / "iris.joblib").write_bytes(pickle.dumps({}))
    located = Located(
        "iris.joblib", tmp_path / "iris.joblib", single=SingleFile(str(tmp_path / "iris.joblib"))
    )
    trusting, wary = Reader(trusts_pickles=True), Reader()

    opened = await trusting.open(located, tmp_path / "work", trusted=trusted)
    assert opened.manifest.handler == "tabular"
    with pytest.raises(InvalidModel, match="trust_pickles=true"):
        await wary.open(located, tmp_path / "work", trusted=trusted)
    for reader in (trusting, wary):
        reader.close()


async def test_a_helper_reads(folder: Path, tmp_path: Path) -> None:
    """What it found comes back; what it refuses is refused, and leaves nothing, also of a download."""
    reader, work = Reader(), tmp_path / "work"
    work.mkdir()
    broken = tmp_path / "broken.mar"
    broken.write_bytes(b"PK no archive")
    try:
        archive = await reader.open(Located("m", folder), work)
        with pytest.raises(InvalidModel):
            await reader.open(Located("broken.mar", broken, downloaded=broken), work)
    finally:
        reader.close()

    assert (archive.model_dir, archive.manifest.model_version) == (folder, "2.0")
    assert list(work.iterdir()) == []
    assert not broken.exists()
