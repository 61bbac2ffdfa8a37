"""The archives and model directories in the model store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from modelserver.errors import ModelServerError
from modelserver.models.archives.urls import scheme

if TYPE_CHECKING:
    from modelserver.models.archives.incoming import Transfer
    from modelserver.models.archives.single_file import MakeNetwork
    from modelserver.models.environments.shared_cache import Use

# What fetches archives from other machines, if the server has something that does.

# Stores the file at an http(s) URL, which is allowed, in the model store; beside the file of a model that is
# being replaced under a hidden name. The second path is a directory of the server. Raises ``ModelNotFound``
# for a redirect that is not allowed, ``ModelFileExists`` if its file name is taken, ``DownloadFailed``,
# ``BadRequest`` for a signed request to what is no S3, and ``InternalError`` if it cannot be stored.
Download: TypeAlias = "Callable[[str, Path, Path, Transfer], Awaitable[Path]]"


class ObjectStores(Protocol):
    """Fetches to the cache of the machine, where an archive stays until its use ends.

    Both raise ``ModelNotFound``, ``DownloadFailed``, ``InternalError``, and ``BadRequest`` for a URL that is
    not of the plain form.
    """

    async def fetch(
        self, url: str, source: str, workdir: Path, transfer: Transfer
    ) -> tuple[Path, Use | None]:
        """The archive at ``source``, the URL of an object or folder; errors name it by ``url``.

        Without a ``Use`` its file or folder stays by itself. ``workdir`` is a directory of the server, with
        the cache where the user has none.
        """

    async def names(self, url: str) -> list[str]:
        """What is in the folder at a URL, as of a few seconds ago; folders end in a slash."""


class HubModels(Protocol):
    """Models of the Hugging Face hub, also in folders of this machine."""

    def without_options(self, url: str) -> str:
        """The URL without the options of :meth:`lay_out`."""

    def lay_out(self, folder: Path, url: str, workdir: Path) -> Path | None:
        """The archive's folder, made for a model of the Hugging Face hub; None for what is none.

        Raises ``InvalidModel``, ``OSError``.
        """


# If several files have the same name, the earlier suffix takes precedence.
SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz")


class ModelStore:
    """A folder, or the URL of one in an object store; without either there is nothing in it.

    ``remote`` has the object stores by the schemes of their URLs, ``download`` fetches from http(s) URLs,
    ``network`` makes networks of torchvision, and ``hub`` lays out models of the hub, if something does.
    """

    def __init__(self, place: Path | str | None, remote: Mapping[str, ObjectStores] | None = None) -> None:
        self._place = place
        self.remote = dict(remote or {})
        self.hub: HubModels | None = None
        self.download: Download | None = None
        self.network: MakeNetwork | None = None

    def is_remote(self, url: str) -> bool:
        """Whether the URL is that of an archive in an object store."""
        return scheme(url) in self.remote

    async def loadable(self) -> list[str]:
        """The names of archives and model directories, in no order. Raises OSError, ModelServerError."""
        if self._place is None:
            return []
        if isinstance(self._place, Path):
            entries = await asyncio.to_thread(_entries, self._place)
        else:
            store = self.remote.get(scheme(self._place) or "")
            entries = [] if store is None else await store.names(self._place)
        return [
            name
            for name, is_folder in ((entry.rstrip("/"), entry.endswith("/")) for entry in entries)
            if not name.startswith(".") and (is_folder or name.endswith(SUFFIXES))
        ]

    async def by_name(self) -> dict[str, str]:
        """File names by the model names of the repository extension, which have no suffixes.

        Empty if there is no readable store.
        """
        try:
            files = await self.loadable()
        except (OSError, ModelServerError):
            return {}
        return {file.removesuffix(_suffix(file)): file for file in sorted(files, key=_rank, reverse=True)}


def _entries(folder: Path) -> list[str]:
    """The names in a folder; those of folders end in a slash."""
    return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir()]


def _suffix(file: str) -> str:
    return next((suffix for suffix in SUFFIXES if file.endswith(suffix)), "")


def _rank(file: str) -> tuple[int, str]:
    suffix = _suffix(file)
    return (SUFFIXES.index(suffix) if suffix else len(SUFFIXES)), file
