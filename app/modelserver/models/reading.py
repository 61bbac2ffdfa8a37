"""Reads archives in helper processes, because their content may need unlimited time or memory."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import msgspec

from modelserver.engine.offload.helpers import Helpers
from modelserver.errors import InvalidModel, ModelServerError
from modelserver.models.archives.archive import ModelArchive, ReadConfig, open_archive
from modelserver.models.archives.manifest import Manifest
from modelserver.models.archives.single_file import LayOut, SingleFile
from modelserver.models.archives.sources import Located

# Concurrent readers, and the address space of each in bytes.
_READERS = 4
_MEMORY = 1 << 30
# Bytes of sources that are parsed in milliseconds.
_FEW = 1 << 16
# CPU time per archive, plus a second per so many bytes.
_SECONDS = 60.0
_BYTES_A_SECOND = 10 << 20


class Contents(msgspec.Struct, frozen=True):
    """The manifest and configuration of an archive without the raw documents, and where it was unpacked.

    ``need``: as that of the archive.
    """

    model_dir: str
    temporary: bool
    manifest: Manifest
    need: int
    config: ReadConfig | None = None


class Reader:
    """Opens archives in helper processes, and an operator's own script or model file without one.

    ``trusts_pickles``: a model file may be one. ``lay_out`` is set by an extension; without it, only archives
    are served.
    """

    def __init__(self, *, trusts_pickles: bool = False) -> None:
        self._trusts_pickles = trusts_pickles
        self.lay_out: LayOut | None = None
        self._helpers = Helpers("archives", _READERS, _MEMORY, InvalidModel)

    async def open(self, located: Located, workdir: Path, *, trusted: bool = False) -> ModelArchive:
        """Calls :func:`open_archive` and parses the configuration. Raises InvalidModel beyond the limits.

        ``trusted``: the operator named it at the start.
        """
        if located.single is not None:
            return await self._open_single(located.single, located, workdir, trusted=trusted)
        size, folder = await asyncio.to_thread(_size, located.path), workdir / uuid4().hex
        opened = ModelArchive(
            located.url,
            located.path if size is None else folder,
            Manifest(),
            temporary=located.temporary or size is not None,
            downloaded=located.downloaded,
        )
        seconds = _SECONDS + (size or 0) / _BYTES_A_SECOND
        arguments = (str(located.path), located.url, str(folder), located.temporary)
        try:
            contents = await self._helpers.call(seconds, read_archive, *arguments)
        except ModelServerError:
            # A reader that was killed may have left files.
            await asyncio.to_thread(opened.remove)
            raise
        return replace(
            opened,
            model_dir=Path(contents.model_dir),
            manifest=contents.manifest,
            config=contents.config,
            temporary=contents.temporary,
            need=contents.need,
        )

    async def _open_single(
        self, single: SingleFile, located: Located, workdir: Path, *, trusted: bool
    ) -> ModelArchive:
        if self.lay_out is None:
            raise InvalidModel(f"{located.url} is no archive, and this server serves nothing else.")
        single, folder = replace(single, trusts_pickles=self._trusts_pickles), workdir / uuid4().hex
        arguments = (single, located.url, str(folder))
        try:
            if trusted and await asyncio.to_thread(_is_quick, located.path):
                # Starting a helper would take a quarter of the time to the first answer.
                await asyncio.to_thread(self.lay_out, *arguments)
            else:
                # Not all of a large file is read.
                await self._helpers.call(_SECONDS, self.lay_out, *arguments)
        except Exception:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        return await asyncio.to_thread(open_archive, folder, located.url, workdir, temporary=True)

    def close(self) -> None:
        self._helpers.close()


def read_archive(path: str, url: str, folder: str, temporary: bool) -> Contents:
    """Runs in a helper; unpacks a packed archive into ``folder``. Raises as :func:`open_archive`."""
    target = Path(folder)
    archive = open_archive(Path(path), url, target.parent, temporary=temporary, name=target.name)
    manifest = replace(archive.manifest, raw={})
    config = _read_config(archive.config_text)
    return Contents(str(archive.model_dir), archive.temporary, manifest, archive.need, config)


def _read_config(text: str | None) -> ReadConfig | None:
    if text is None:
        return None
    # In the helper: the server needs no YAML to start.
    from modelserver.models.options.yaml_file import parse_model_config  # noqa: PLC0415

    try:
        config, warnings = parse_model_config(text)
    except InvalidModel as error:
        return ReadConfig(problem=error.message)
    return ReadConfig(replace(config, raw={}), tuple(warnings))


def _is_quick(path: Path) -> bool:
    """Whether a single file can be laid out in no time: what is parsed for it is small."""
    if path.suffix != ".py":
        return True
    return sum(source.stat().st_size for source in path.parent.glob("*.py") if source.is_file()) <= _FEW


def _size(path: Path) -> int | None:
    """Bytes of a file; None for a directory."""
    return None if path.is_dir() else path.stat().st_size
