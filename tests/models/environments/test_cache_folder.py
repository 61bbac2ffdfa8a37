"""Where environments are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver.models.environments.cache_folder import cache_folder

if TYPE_CHECKING:
    from pathlib import Path


def test_the_variable_names_it(tmp_path: Path) -> None:
    """The folder is made, and is this user's alone."""
    folder = cache_folder("environments", {"MODELSERVER_CACHE": str(tmp_path / "a" / "b")})

    assert folder == tmp_path / "a" / "b" / "environments"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_xdg_folder_is_used(tmp_path: Path) -> None:
    """The user's cache folder is the next choice."""
    assert cache_folder("x", {"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "modelserver" / "x"


def test_home_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either variable it is in the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder("x", {}) == tmp_path / ".cache" / "modelserver" / "x"


@pytest.mark.parametrize("setting", ["off", ""])
def test_cache_is_turned_off(setting: str) -> None:
    """It can be turned off."""
    assert cache_folder("x", {"MODELSERVER_CACHE": setting}) is None


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    """What lies in it is run (F68)."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    assert cache_folder("x", {"MODELSERVER_CACHE": str(shared)}) is None


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in its place is no error."""
    (tmp_path / "file").touch()

    assert cache_folder("x", {"MODELSERVER_CACHE": str(tmp_path / "file")}) is None
