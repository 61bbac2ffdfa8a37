import asyncio
import os

import pytest

from modelserver.errors import ModelServerError
from modelserver.models.options.resolve import Registration
from modelserver.models.settings.load import load_settings
from modelserver.testing.engine import engine


async def test_a_model_that_fails_leaves_nothing_behind(script, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loaded = load_settings({"model_store": str(script.parent)}, {}, tmp_path)
    before = asyncio.all_tasks()

    with pytest.raises(ModelServerError, match=r"not today \(numbers_served.py, line 20, in breaks\)"):
        async with engine(loaded, Registration(url=f"{script}:breaks", trusted=True, min_workers=1)):
            raise AssertionError

    assert asyncio.all_tasks() == before
    assert os.listdir(tmp_path) == []
