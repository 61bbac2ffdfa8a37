import asyncio
import json
from pathlib import Path

import pytest
from tests.waiting import until

from modelserver.errors import ConfigError
from modelserver.ext.tokens.key_file import KeyFile
from modelserver.ext.tokens.rotation import Rotation
from modelserver.models.settings.settings import Settings
from modelserver.surface.auth.scopes import Scope


def opens(rotation: Rotation, token: str) -> bool:
    return rotation.keeper.verifier.accepts(Scope.INFERENCE, f"Bearer {token}".encode())


def give(path: Path, *tokens: str) -> None:
    path.write_text(json.dumps({"inference": tokens}))


async def test_a_changed_file_counts(tmp_path, caplog):
    """A broken one stops the start, and changes nothing later; no token is logged."""
    path = tmp_path / "tokens.json"
    path.write_text("{")
    settings, key_file = Settings(token_file=path), KeyFile(tmp_path / "key_file.json")
    with pytest.raises(ConfigError, match="token_file="):
        Rotation(settings, {}, key_file)
    give(path, "token-one")
    caplog.set_level("INFO")
    rotation = Rotation(settings, {}, key_file)
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
