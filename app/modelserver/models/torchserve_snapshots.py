"""TorchServe's own rules of snapshots, for its defaults (reference 17).

A start without a named configuration file takes the newest snapshot as its configuration, ``--models`` is
not loaded beside a state, and an archive that is not in the model store keeps the server from starting.

Other than in TorchServe, also under its defaults: a snapshot that is not whole is passed over for the one
before, an archive that is there and cannot be loaded costs its own model only, and handlers that a
registration named are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.errors import ConfigError
from modelserver.models.snapshot_files import SnapshotFolder
from modelserver.models.urls import scheme

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from modelserver.models.snapshot import SavedModel


def newest_configuration(folder: Path) -> Path | None:
    """The newest snapshot of the folder that is whole."""
    found = SnapshotFolder(folder, {}).newest()
    return None if found is None else found.path


def check_archives(saved: Iterable[SavedModel], store: Path | None) -> None:
    """Raises ConfigError for the first version whose archive is not in the model store."""
    for model in saved:
        url = model.registration.url or ""
        if scheme(url) or store is None:
            continue
        if not (store / url.rstrip("/").rpartition("/")[2]).exists():
            raise ConfigError(
                f"Model archive file for model :{model.name}, version :{model.version} "
                f"not found in model store: {url}"
            )
