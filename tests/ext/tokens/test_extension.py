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


@pytest.fixture
def make_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELSERVER_INFERENCE_TOKEN", "given-token")
    return lambda **settings: SimpleNamespace(
        settings=Settings(**settings), services=Services(None), run=lambda _: None
    )


async def test_the_file_lives_as_long_as_the_server(make_host):
    host = make_host()
    extensions = await open_all(TABLE, host)

    assert host.services.tokens.fingerprints
    assert os.listdir() == ["key_file.json"]
    assert "MODELSERVER_INFERENCE_TOKEN" not in os.environ
    await close_extensions(extensions, 0.0)
    assert os.listdir() == []


async def test_variables_leave_the_environment_without_tokens_too(make_host):
    assert await open_all(TABLE, make_host(disable_token_authorization=True)) == []
    assert "MODELSERVER_INFERENCE_TOKEN" not in os.environ
    assert os.listdir() == []


async def test_no_server_starts_without_the_tokens_that_it_requires(make_host):
    with pytest.raises(ConfigError, match="Tokens are required"):
        await open_all({}, make_host())
