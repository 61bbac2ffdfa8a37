import json
import os
from pathlib import Path
from typing import Any

import pytest

from modelserver.errors import ConfigError, Conflict
from modelserver.ext.tokens.keeper import TokenKeeper
from modelserver.ext.tokens.key_file import KeyFile
from modelserver.surface.auth.scopes import Scope


def content(path: Path) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return document


def opens(keeper: TokenKeeper, scope: Scope, token: str) -> bool:
    return keeper.verifier.accepts(scope, f"Bearer {token}".encode())


def test_three_tokens_are_made(path, clock):
    """Each opens its scope only; the file is TorchServe's, for its owner (reference 16.1)."""
    keeper = TokenKeeper({}, None, KeyFile(path), clock)
    result = content(path)

    assert list(result) == ["management", "inference", "API"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [path] == list(path.parent.iterdir())
    for scope in Scope:
        for other in Scope:
            assert opens(keeper, other, result[scope.value]["key"]) is (scope is other)
    assert {len(entry["key"]) for entry in result.values()} == {32}
    assert all(set(entry) == {"key"} for entry in result.values())


def test_tokens_expire_except_that_of_the_api(path, clock):
    """Tokens end after their time, which is in the file; that of the API does not (reference 16.1)."""
    keeper = TokenKeeper({}, 15.0, KeyFile(path), clock)
    result = content(path)

    for scope in ("inference", "management"):
        assert result[scope]["expiration time"] == "2023-11-14T22:13:35.250000Z"
    assert "expiration time" not in result["API"]
    clock.now += 14.9
    assert opens(keeper, Scope.INFERENCE, result["inference"]["key"])
    clock.now += 0.2
    assert not opens(keeper, Scope.INFERENCE, result["inference"]["key"])
    assert opens(keeper, Scope.API, result["API"]["key"])


def test_renewal_replaces_one_token(path, clock):
    """The new token is in the file, the old one is no good at once, the others stay (reference 16.2)."""
    keeper = TokenKeeper({}, 15.0, KeyFile(path), clock)
    changes: list[int] = []
    keeper.on_change(lambda: changes.append(1))
    before = content(path)
    clock.now += 100.0
    keeper.renew(Scope.INFERENCE)
    after = content(path)

    assert after["management"] == before["management"]
    assert after["API"] == before["API"]
    assert not opens(keeper, Scope.INFERENCE, before["inference"]["key"])
    assert opens(keeper, Scope.INFERENCE, after["inference"]["key"])
    assert changes == [1]


def test_renewal_that_cannot_be_written(path, clock, monkeypatch):
    """If the file cannot be written, the old token stays good: nobody could read the new one."""
    keeper = TokenKeeper({}, None, KeyFile(path), clock)
    before = content(path)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="No space left on device"):
        keeper.renew(Scope.INFERENCE)
    assert opens(keeper, Scope.INFERENCE, before["inference"]["key"])


def test_provided_tokens_are_replaced_and_never_written(path, clock):
    """Where all tokens are provided no file is written, so the directory may be read-only."""
    keeper = TokenKeeper({scope: (f"{scope.value}-token",) for scope in Scope}, 15.0, KeyFile(path), clock)
    assert not path.exists()
    keeper.replace_provided({Scope.INFERENCE: ("given-old", "given-new")})
    assert list(content(path)) == ["management", "API"]
    with pytest.raises(Conflict, match="The inference tokens are given"):
        keeper.renew(Scope.INFERENCE)
    manager = content(path)["management"]["key"]
    assert opens(keeper, Scope.MANAGEMENT, manager)
    clock.now += 1e9
    assert opens(keeper, Scope.INFERENCE, "given-old")
    assert opens(keeper, Scope.INFERENCE, "given-new")
    keeper.replace_provided({Scope.INFERENCE: ("given-new",)})
    assert not opens(keeper, Scope.INFERENCE, "given-old")
    assert opens(keeper, Scope.INFERENCE, "given-new")

    keeper.replace_provided({})
    assert not opens(keeper, Scope.INFERENCE, "given-new")
    assert opens(keeper, Scope.INFERENCE, content(path)["inference"]["key"])


def test_the_file_goes_with_the_server(path, clock):
    TokenKeeper({}, None, KeyFile(path), clock).close()
    assert not path.exists()

    first = TokenKeeper({}, None, KeyFile(path), clock)
    second = TokenKeeper({}, None, KeyFile(path), clock)
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()
