import asyncio

import pytest

from modelserver.tools.serve.file_changes import changes, folders_of


@pytest.fixture
def top(tmp_path):
    """A script with a package, and folders that are none of its."""
    for name in ("package/inner", ".venv/lib", "data", "__pycache__"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("handler.py", "package/__init__.py", "package/inner/__init__.py"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_folders_with_packages_are_watched(top):
    assert set(folders_of(top / "handler.py")) == {top, top / "package", top / "package" / "inner"}
    assert set(folders_of(top)) == {top, top / "package", top / "package" / "inner", top / "data"}
    assert folders_of(top / "net.pt2") == [top]


async def test_only_sources_and_the_model_file_count(top, tmp_path):
    weights, source, notes = tmp_path / "weights.pt", top / "package" / "__init__.py", top / "notes.txt"
    batches = changes(top / "handler.py", weights)

    async def reported(path):
        """The next batch, while both files are written again and again: watching takes a while to start."""
        coming = asyncio.ensure_future(anext(batches))
        while not coming.done():
            for each in (notes, path):
                await asyncio.to_thread(each.write_text, "x = 1")
            await asyncio.sleep(0.02)
        return coming.result()

    seen = await reported(source)
    assert seen == {source}
    while weights not in seen:
        seen = await reported(weights)
    assert notes not in seen
    await batches.aclose()
