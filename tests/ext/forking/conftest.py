import os
from pathlib import Path

import pytest

from modelserver.ext.forking.preload_reader import PreloadReader
from modelserver.ext.forking.preloading import Preload
from modelserver.ext.forking.spawner import Spawner

# A light module that is taken for heavy: what is tested here is not torch.
HEAVY = "colorsys"


@pytest.fixture
async def spawner(monkeypatch):
    """A spawner that takes a light module for a heavy one."""
    monkeypatch.setattr("modelserver.ext.forking.preloading.HEAVY", frozenset({HEAVY}))
    made = Spawner()
    yield made
    await made.close()


def preloaded(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> Path:
    """Has a module with this source imported for all models, though none of them names it; a model."""
    packages, model = folder / "packages", folder / "model"
    packages.mkdir()
    model.mkdir()
    (packages / "preloaded.py").write_text(source)
    (model / "h.py").write_text("def handle(data, context):\n    return data\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))

    async def preload_of(self: PreloadReader, model_dir: Path, handler: str) -> Preload:
        return Preload(("preloaded",), "")

    monkeypatch.setattr(PreloadReader, "preload_of", preload_of)
    return model
