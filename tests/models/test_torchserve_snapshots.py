"""TorchServe's rules of snapshots, for its defaults (reference 17)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from modelserver.errors import ConfigError
from modelserver.models.snapshot import parse_snapshot
from modelserver.models.snapshot_files import SnapshotFolder, check_archives, newest_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.models.version import SavedModel


def saved(**fields: str) -> tuple[SavedModel, ...]:
    """A state with one version."""
    return parse_snapshot(json.dumps({"models": {"m": {"2.0": {"marName": "m.mar", **fields}}}})).models


def test_the_newest_whole_file_is_the_configuration(tmp_path: Path) -> None:
    """One that was changed under its checksum is passed over, and files that are no snapshots are ignored."""
    assert newest_configuration(tmp_path / "config") is None
    folder = SnapshotFolder(tmp_path / "config", {"job_queue_size": "7"})
    first, last = (folder.write("snapshot", {"models": {}}) for _ in range(2))
    (tmp_path / "config" / "zzz.cfg").write_text("model_snapshot={}")
    assert newest_configuration(tmp_path / "config") == last

    last.write_bytes(last.read_bytes().replace(b"7", b"8"))
    assert newest_configuration(tmp_path / "config") == first


def test_archives_must_be_there(tmp_path: Path) -> None:
    """The message is TorchServe's."""
    with pytest.raises(ConfigError) as error:
        check_archives(saved(), tmp_path)
    assert str(error.value) == (
        "Model archive file for model :m, version :2.0 not found in model store: m.mar"
    )

    (tmp_path / "m.mar").write_text("")
    check_archives(saved(), tmp_path)


@pytest.mark.parametrize("url", ["torchvision://resnet18", "https://example.org/m.mar"])
def test_what_comes_from_elsewhere_is_not_looked_for(tmp_path: Path, url: str) -> None:
    """Only names of files are names in the model store; nor is there anything to find without a store."""
    check_archives(saved(url=url), tmp_path)
    check_archives(saved(), None)
