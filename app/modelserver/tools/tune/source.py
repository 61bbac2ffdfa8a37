"""The model to tune, prepared once: every registration then serves the same unpacked folder."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modelserver.errors import ModelServerError
from modelserver.ext.files.extension import make_network
from modelserver.ext.stores.extension import Stores, download
from modelserver.models.archives.archive import ModelArchive, open_archive
from modelserver.models.archives.manifest import Manifest
from modelserver.models.archives.sources import locate
from modelserver.models.archives.urls import UrlPolicy, scheme
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.tools.archiver import ArchiveConfig, pack_folder
from modelserver.tools.tune.errors import TuningError


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model ready to be registered as ``url`` from ``store``.

    ``label`` is the user's name for it, ``config_text`` the archive's ``model-config.yaml`` if it has one.
    """

    label: str
    name: str
    store: Path
    url: str
    config_text: str | None = None
    manifest: Manifest = field(default_factory=Manifest)

    def pack(self, config: Path, folder: Path, more: Mapping[str, Path] | None = None) -> Path:
        """Writes an archive with another configuration to the folder; returns its path.

        ``more`` are files to add, by their archive names. Raises ArchiverError, OSError.
        """
        name = self.manifest.config_file or config.name
        model = {**(self.manifest.raw.get("model") or {}), "configFile": name}
        text = json.dumps({**self.manifest.raw, "model": model}, indent=2)
        target = ArchiveConfig(
            self.name,
            self.manifest.handler or "",
            self.manifest.model_version,
            export_path=folder,
            archive_format="zip-store",
        )
        return pack_folder(target, self.store / self.url, text, {**(more or {}), name: config})


def open_source(model: str, store: Path | None, workdir: Path) -> ModelSource:
    """Find, fetch and unpack a model; files are written to ``workdir``.

    ``model`` is a ``url`` as for registrations, or the path of any archive or folder. Raises
    TuningError with the reason.
    """
    try:
        archive = _open(model, store, workdir)
        if archive.config_text is not None:
            parse_model_config(archive.config_text)
    except ModelServerError as error:
        raise TuningError(error.message) from error
    manifest = archive.manifest
    folder = archive.model_dir
    return ModelSource(
        model,
        manifest.model_name or _name_of(model),
        folder.parent,
        folder.name,
        archive.config_text,
        manifest,
    )


def _open(model: str, store: Path | None, workdir: Path) -> ModelArchive:
    fetched, unpacked = workdir / "store", workdir / "models"
    fetched.mkdir(parents=True, exist_ok=True)
    path, kind = Path(model), scheme(model)
    url, place = model, store if store is not None and kind in (None, "torchvision") else fetched
    # A model of this name in the store comes first, as in the server.
    if kind is None and path.exists() and not (place / path.name).exists():
        url, place = path.resolve().name, path.resolve().parent
    # The user of this command is the operator: any URL is allowed.
    policy = UrlPolicy(operator_set=True)
    finding = locate(
        url, place, policy, unpacked, stores=Stores.by_scheme(), download=download, network=make_network
    )
    located = asyncio.run(finding)
    return open_archive(located.path, url, unpacked, temporary=located.temporary)


def _name_of(model: str) -> str:
    name = re.split(r"[/\\]", model.partition("?")[0].rstrip("/"))[-1]
    return re.sub(r"[^\w.-]", "_", re.sub(r"\.(mar|tar\.gz|tgz|model)$", "", name)) or "model"
