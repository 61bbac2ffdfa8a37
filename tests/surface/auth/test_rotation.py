import asyncio
import json
from pathlib import Path

import pytest
from tests.waiting import until

from modelserver.errors import ConfigError
from modelserver.models.settings.settings import Settings
from modelserver.surface.auth.rotation import Rotation, server_tokens
from modelserver.surface.auth.scopes import Scope


def opens(rotation: Rotation, token: str) -> bool:
    return rotation.keeper.verifier.accepts(Scope.INFERENCE, f"Bearer {token}".encode())


def give(path: Path, *tokens: str) -> None:
    path.write_text(json.dumps({"inference": tokens}))


def test_files_live_as_long_as_the_server(tmp_path):
    """Without tokens there is none, and variables are removed from the environment nevertheless."""
    environ = {"MODELSERVER_INFERENCE_TOKEN": "given-token"}
    with server_tokens(Settings(disable_token_authorization=True), environ, tmp_path) as rotation:
        assert rotation is None
        assert list(tmp_path.iterdir()) == []
    assert environ == {}
    with server_tokens(Settings(token_authorization="always"), {}, tmp_path):
        assert (tmp_path / "key_file.json").exists()
    assert list(tmp_path.iterdir()) == []


async def test_a_changed_file_counts(tmp_path, caplog):
    """A broken one stops the start, and changes nothing later; no token is logged."""
    path = tmp_path / "tokens.json"
    path.write_text("{")
    settings = Settings(token_file=path)
    with pytest.raises(ConfigError, match="token_file="), server_tokens(settings, {}, tmp_path):
        pass
    give(path, "token-one")
    caplog.set_level("INFO")
    with server_tokens(settings, {}, tmp_path) as rotation:
        assert rotation is not None
        changed = asyncio.Event()
        rotation.keeper.on_change(changed.set)
        watching = asyncio.create_task(rotation.watch(0.01))
        give(path, "token-one", "token-two")
        await asyncio.wait_for(changed.wait(), 10.0)
        assert opens(rotation, "token-one")
        assert opens(rotation, "token-two")
        changed.clear()
        give(path, "token-two")
        await asyncio.wait_for(changed.wait(), 10.0)
        path.write_text("{")
        await until(lambda: "the tokens stay as they were" in caplog.text)
        assert not opens(rotation, "token-one")
        assert opens(rotation, "token-two")
        watching.cancel()
    assert "The given tokens have changed" in caplog.text
    assert "token-one" not in caplog.text
