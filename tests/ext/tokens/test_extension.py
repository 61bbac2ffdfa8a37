import os
from dataclasses import make_dataclass
from types import SimpleNamespace

import pytest

from modelserver.errors import ConfigError
from modelserver.ext import EXTENSIONS
from modelserver.extension import close_extensions
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
    host = SimpleNamespace(settings=settings, services=services, run=lambda _: None)
    if is_on:
        with pytest.raises(ConfigError, match="Tokens are required"):
            await open_all({}, host)
    extensions = await open_all(TABLE, host)

    assert "MODELSERVER_INFERENCE_TOKEN" not in os.environ
    assert (len(extensions), host.services.tokens is not None) == (is_on, is_on)
    assert os.listdir() == ["key_file.json"] * is_on
    await close_extensions(extensions, 0.0)
    assert os.listdir() == []
