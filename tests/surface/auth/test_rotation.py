from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.waiting import until

from modelserver.errors import ConfigError
from modelserver.models.settings.settings import Settings
from modelserver.surface.auth.rotation import Rotation, server_tokens
from modelserver.surface.auth.scopes import Scope

if TYPE_CHECKING:
    from pathlib import Path


def opens(rotation: Rotation, token: str) -> bool:
    return rotation.keeper.verifier.accepts(Scope.INFERENCE, f"Bearer {token}".encode())


def give(path: Path, *tokens: str) -> None:
    path.write_text(json.dumps({"inference": tokens}))


def test_nothing_is_kept_without_tokens(tmp_path: Path) -> None:
    """On loopback there is no file; variables are removed from the environment nevertheless."""
    environ = {"MODELSERVER_INFERENCE_TOKEN": "given-token"}
    with server_tokens(Settings(disable_token_authorization=True), environ, tmp_path) as rotation:
        assert rotation is None
    assert environ == {}
    assert list(tmp_path.iterdir()) == []


def test_the_file_lives_as_long_as_the_server(tmp_path: Path) -> None:
    """It is there while tokens are kept."""
    with server_tokens(Settings(token_authorization="always"), {}, tmp_path):
        assert (tmp_path / "key_file.json").exists()
    assert list(tmp_path.iterdir()) == []


async def test_a_changed_file_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tokens that were put into the file are good, those taken out are not; neither is logged."""
    path = tmp_path / "tokens.json"
    give(path, "token-one")
    caplog.set_level("INFO")
    with server_tokens(Settings(token_file=path), {}, tmp_path) as rotation:
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
        assert not opens(rotation, "token-one")
        assert opens(rotation, "token-two")
        watching.cancel()
    assert "The given tokens have changed" in caplog.text
    assert "token-one" not in caplog.text


async def test_a_broken_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is complained of in the log, and the tokens stay as they were."""
    path = tmp_path / "tokens.json"
    give(path, "token-one")
    with server_tokens(Settings(token_file=path), {}, tmp_path) as rotation:
        assert rotation is not None
        path.write_text("{")
        watching = asyncio.create_task(rotation.watch(0.01))
        await until(lambda: "the tokens stay as they were" in caplog.text)
        watching.cancel()
        assert opens(rotation, "token-one")


def test_a_broken_file_at_the_start(tmp_path: Path) -> None:
    """It stops the start."""
    with (
        pytest.raises(ConfigError, match="token_file="),
        server_tokens(Settings(token_file=tmp_path), {}, tmp_path),
    ):
        pass
