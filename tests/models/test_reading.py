import pickle
from contextlib import closing
from unittest.mock import AsyncMock

import pytest
from tests.models.conftest import write_model

from modelserver.engine.offload.helpers import Helpers
from modelserver.errors import InvalidModel
from modelserver.ext.files.extension import lay_out
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.archives.sources import Located
from modelserver.models.reading import Reader, read_archive


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path, "m", "m", "2.0", config="batchSize: 4\nown: [1]\n")
    return tmp_path / "m"


def test_what_an_archive_says(folder, tmp_path):
    contents = read_archive(str(folder), "m", str(tmp_path / "work" / "x"), temporary=False)

    assert (contents.model_dir, contents.temporary) == (str(folder), False)
    assert (contents.manifest.model_name, contents.manifest.raw) == ("m", {})
    assert contents.config.problem == ""

    (folder / "model-config.yaml").write_text("[")
    contents = read_archive(str(folder), "m", str(tmp_path / "work" / "x"), temporary=False)

    assert contents.config.problem


async def test_operators_script_needs_no_helper(tmp_path, monkeypatch):
    monkeypatch.setattr(Helpers, "call", AsyncMock(side_effect=InvalidModel("a helper was asked")))
    script, work = tmp_path / "scripts" / "doubler.py", tmp_path / "work"
    script.parent.mkdir()
    script.write_text("def handle(data, context):\n    return data\n")
    located = Located("doubler.py", script, single=SingleFile(str(script)))
    with closing(Reader()) as reader:
        reader.lay_out = lay_out
        archive = await reader.open(located, work, trusted=True)
        with pytest.raises(InvalidModel, match="a helper was asked"):
            await reader.open(located, work)
        (script.parent / "large.py").write_text("#" * (1 << 16))
        with pytest.raises(InvalidModel, match="a helper was asked"):
            await reader.open(located, work, trusted=True)

    assert (archive.manifest.model_name, archive.manifest.handler) == ("doubler", "doubler.py")
    assert archive.temporary
    assert (archive.model_dir / "doubler.py").is_file()


@pytest.mark.parametrize("trusted", [True, False])
async def test_pickles_are_read_if_trusted(trusted, tmp_path):
    path = tmp_path / "iris.joblib"
    path.write_bytes(pickle.dumps({}))
    located = Located("iris.joblib", path, single=SingleFile(str(path)))
    with closing(Reader(trusts_pickles=True)) as trusting, closing(Reader()) as wary:
        trusting.lay_out = wary.lay_out = lay_out
        opened = await trusting.open(located, tmp_path / "work", trusted=trusted)
        assert opened.manifest.handler == "tabular"
        with pytest.raises(InvalidModel, match="trust_pickles=true"):
            await wary.open(located, tmp_path / "work", trusted=trusted)


async def test_a_script_is_refused_without_the_extension(tmp_path):
    located = Located("doubler.py", tmp_path / "doubler.py", single=SingleFile("doubler.py"))
    with closing(Reader()) as reader, pytest.raises(InvalidModel, match=r"doubler\.py is no archive"):
        await reader.open(located, tmp_path)


async def test_a_helper_reads(folder, tmp_path):
    """What it found comes back; what it refuses is refused, and leaves nothing, also of a download."""
    work = tmp_path / "work"
    work.mkdir()
    broken = tmp_path / "broken.mar"
    broken.write_bytes(b"PK no archive")
    with closing(Reader()) as reader:
        archive = await reader.open(Located("m", folder), work)
        with pytest.raises(InvalidModel):
            await reader.open(Located("broken.mar", broken, downloaded=broken), work)

    assert (archive.model_dir, archive.manifest.model_version) == (folder, "2.0")
    assert list(work.iterdir()) == []
    assert not broken.exists()
