import os
from contextlib import AsyncExitStack
from dataclasses import make_dataclass
from types import SimpleNamespace

import pytest

from modelserver.errors import ConfigError
from modelserver.ext import EXTENSIONS
from modelserver.models.settings.settings import Settings
from modelserver.run.server import open_all

TABLE = {"tokens": EXTENSIONS["tokens"]}
Services = make_dataclass("Services", ["tokens"])


@pytest.mark.parametrize("is_on", [True, False])
async def test_tokens_leave_the_environment(tmp_path, monkeypatch, is_on):
    """Workers would inherit them. Where tokens are required, no server starts without the extension."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELSERVER_INFERENCE_TOKEN", "given-token")
    settings, services = Settings(disable_token_authorization=not is_on), Services(None)
    closing = AsyncExitStack()
    host = SimpleNamespace(settings=settings, services=services, run=lambda _: None, closing=closing)
    if is_on:
        with pytest.raises(ConfigError, match="Tokens are required"):
            await open_all({}, host)
    await open_all(TABLE, host)

    assert "MODELSERVER_INFERENCE_TOKEN" not in os.environ
    assert (host.services.tokens is not None) is is_on
    assert os.listdir() == ["key_file.json"] * is_on
    await closing.aclose()
    assert os.listdir() == []
