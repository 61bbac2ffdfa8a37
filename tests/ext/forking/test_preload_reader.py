"""Sources of models are read beside the server: once, within limits, and never in its own process."""

import asyncio

import pytest

from modelserver.ext.forking import preload_reader, preloading
from modelserver.ext.forking.preload_reader import PreloadReader
from modelserver.ext.forking.preloading import Preload


class Readings:
    """Counts the processes that read, which fail with ``error`` if it is set."""

    def __init__(self, monkeypatch):
        self.count = 0
        self.error: Exception | None = None
        read = preload_reader._read

        async def counted(model_dir, handler):
            self.count += 1
            if self.error is not None:
                raise self.error
            return await read(model_dir, handler)

        monkeypatch.setattr(preload_reader, "_read", counted)


@pytest.fixture
def readings(monkeypatch):
    return Readings(monkeypatch)


async def test_workers_share_one_reading(readings, tmp_path):
    (tmp_path / "h.py").write_text("import torch\n")
    reader = PreloadReader()
    result = await asyncio.gather(*(reader.preload_of(tmp_path, "h.py") for _ in range(20)))
    assert result == [Preload(("torch",))] * 20
    await reader.preload_of(tmp_path, "h.py")
    assert readings.count == 1

    (tmp_path / "other.py").write_text("import torchvision\n")
    assert await reader.preload_of(tmp_path, "h.py") == Preload(("torch", "torchvision"))
    assert readings.count == 2


async def test_crash_of_the_reader_is_ignored(readings, monkeypatch, tmp_path):
    """It costs the preload, and is not tried again as long as the files are the same."""
    (tmp_path / "h.py").write_text("import torch\n")
    script = tmp_path / "crash"
    script.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(preloading, "__file__", str(script))
    reader = PreloadReader()

    assert [await reader.preload_of(tmp_path, "h.py") for _ in range(2)] == [None, None]
    assert readings.count == 1


async def test_a_process_that_cannot_be_started(readings, caplog, tmp_path):
    (tmp_path / "h.py").write_text("import torch\n")
    reader = PreloadReader()
    readings.error = OSError("Too many open files")
    assert await reader.preload_of(tmp_path, "h.py") is None
    assert "Too many open files" in caplog.text
    readings.error = None

    assert await reader.preload_of(tmp_path, "h.py") == Preload(("torch",))


async def test_what_cannot_be_read_is_not_preloaded(tmp_path, monkeypatch):
    (tmp_path / "g.py").symlink_to(tmp_path / "g.py")

    assert await PreloadReader().preload_of(tmp_path, "h.py") is None

    (tmp_path / "g.py").unlink()
    monkeypatch.setattr(preload_reader, "TIME_LIMIT", 0.05)
    (tmp_path / "h.py").write_text("import torch\n" + "x = [1, 2, (3, 4)]\n" * 52_000)

    assert await PreloadReader().preload_of(tmp_path, "h.py") is None


async def test_no_process_where_nothing_is_mentioned(tmp_path, monkeypatch):
    async def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    (tmp_path / "h.py").write_text("import json\nimport modelserver\n")

    assert await PreloadReader().preload_of(tmp_path, "h.py:Name") is None
    for text in ("import torch\n", "from modelserver_handlers.base import BaseHandler\n"):
        (tmp_path / "h.py").write_text(text)
        with pytest.raises(AssertionError):
            await PreloadReader().preload_of(tmp_path, "h.py")
