"""A workflow's archive: a ``.war`` of a specification and a file of functions (reference 11.2 and 19)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from modelserver.engine.offload.helpers import Helpers
from modelserver.errors import BadRequest, InternalError, ModelNotFound
from modelserver.ext.workflows.errors import InvalidWorkflow, WorkflowNotFound
from modelserver.ext.workflows.specification import Specification, parse_specification
from modelserver.models.archives.unpack import safe_parts, unpack
from modelserver.models.archives.urls import leaves_its_place, scheme

FindFile = Callable[[str, Path | None, Path], Awaitable[tuple[Path, Path | None] | None]]

MANIFEST_PATH: Final = "WAR-INF/MANIFEST.json"
# The most bytes of the manifest, the specification and the file of functions.
_LARGEST: Final = 4 << 20
# Limits of the helper that reads archives: bytes of address space, and seconds of CPU time.
_MEMORY: Final = 1 << 30
_SECONDS: Final = 60.0


class _Named(msgspec.Struct, frozen=True, rename="camel"):
    workflow_name: str | None = None
    spec_file: str | None = None
    handler: str | None = None


class _Manifest(msgspec.Struct, frozen=True):
    workflow: _Named = _Named()


class ArchiveContents(msgspec.Struct, frozen=True):
    """What an archive says. ``name`` and ``handler`` are empty where the manifest has none."""

    name: str
    handler: str
    specification: Specification


@dataclass(frozen=True, slots=True)
class WorkflowArchive:
    """An unpacked archive in ``folder``. ``downloaded`` is the file of a URL in the workflow store."""

    url: str
    folder: Path
    contents: ArchiveContents
    downloaded: Path | None = None

    def remove(self) -> None:
        """Deletes what was unpacked, and the downloaded file. It blocks."""
        _discard(self.folder, self.downloaded)


class ArchiveReader:
    """Finds and unpacks archives; what is in them is read by a helper process.

    Args:
        find_file: finds or downloads an archive by the rules for models.
        store: the folder of workflow archives, if there is one.
        workdir: for unpacked archives.
    """

    def __init__(self, find_file: FindFile, store: Path | None, workdir: Path) -> None:
        self._find_file = find_file
        self._store = store
        self._workdir = workdir
        self._helpers = Helpers("workflows", 1, _MEMORY, InvalidWorkflow)

    async def open(self, url: str) -> WorkflowArchive:
        """The archive that the URL names.

        Raises WorkflowNotFound, InvalidWorkflow, InvalidDag, DownloadFailed, Conflict, InternalError.
        """
        path, downloaded = await find_archive(url, self._find_file, self._store, self._workdir)
        folder = self._workdir / uuid4().hex
        try:
            contents = await self._helpers.call(_SECONDS, read_archive, str(path), str(folder))
        except BaseException:
            await asyncio.to_thread(_discard, folder, downloaded)
            raise
        return WorkflowArchive(url, folder, contents, downloaded)

    def close(self) -> None:
        """Ends the helper."""
        self._helpers.close()


async def find_archive(
    url: str, find_file: FindFile, store: Path | None, workdir: Path
) -> tuple[Path, Path | None]:
    """A file of the workflow store, or a URL by the rules for models; with the latter, the downloaded file.

    Raises WorkflowNotFound and others.
    """
    if not url:
        raise WorkflowNotFound("Workflow not found at: ")
    if leaves_its_place(url):
        raise WorkflowNotFound(f"Relative path is not allowed in url: {url}")
    kind = scheme(url)
    try:
        if kind in (None, "file", "http", "https"):
            file = await find_file(url, store, workdir)
            if file is not None:
                return file
    except ModelNotFound as error:
        if kind is not None:
            raise WorkflowNotFound(error.message) from None
    raise WorkflowNotFound(f"Workflow not found in workflow store: {url}")


def read_archive(path: str, folder: str) -> ArchiveContents:
    """Runs in a helper: unpacks an archive into ``folder``, and reads it.

    Raises InvalidWorkflow, InvalidDag, and InternalError if it cannot be stored.
    """
    archive, target = Path(path), Path(folder)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unpack(archive, target)
    except BadRequest as error:
        raise InvalidWorkflow(error.message) from None
    except OSError as error:
        raise InternalError(f"Failed to save workflow: {archive.name}: {error.strerror or error}") from error
    manifest = _manifest(target)
    if not manifest.spec_file:
        raise InvalidWorkflow(f"{MANIFEST_PATH} has no specFile.")
    text = _text(target, manifest.spec_file, "specFile")
    functions = _text(target, manifest.handler, "handler") if manifest.handler else None
    specification = parse_specification(text, manifest.spec_file, functions)
    return ArchiveContents(manifest.workflow_name or "", manifest.handler or "", specification)


def _manifest(folder: Path) -> _Named:
    text = _text(folder, MANIFEST_PATH, "manifest")
    try:
        return msgspec.json.decode(text, type=_Manifest).workflow
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidWorkflow(f"{MANIFEST_PATH}: {error}") from None


def _text(folder: Path, name: str, what: str) -> str:
    """A file of the archive."""
    try:
        path = folder.joinpath(*safe_parts(name))
    except ValueError as error:
        raise InvalidWorkflow(f"Invalid {what} {name[:200]!r} in {MANIFEST_PATH}: {error}.") from None
    if not path.is_file():
        raise InvalidWorkflow(f"The archive has no {name[:200]}.")
    if path.stat().st_size > _LARGEST:
        raise InvalidWorkflow(f"{name[:200]} is larger than {_LARGEST} bytes.")
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidWorkflow(f"{name[:200]} is not UTF-8 text.") from None


def _discard(folder: Path, downloaded: Path | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if downloaded is not None:
        with contextlib.suppress(OSError):
            downloaded.unlink(missing_ok=True)
