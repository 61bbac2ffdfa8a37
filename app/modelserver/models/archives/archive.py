"""An opened model archive: a directory that workers load from, its manifest and its configuration."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from modelserver.engine.pools.gate import BASE_NEED, need_of
from modelserver.errors import InternalError, InvalidModel
from modelserver.models.archives.manifest import MANIFEST_PATH, Manifest, check_handler, parse_manifest
from modelserver.models.archives.unpack import unpack
from modelserver.models.options.table import ModelConfig

# Bytes of a manifest, and of a configuration file.
_MAX_MANIFEST: Final = 4 << 20
_MAX_CONFIG: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """A parsed configuration file; ``problem`` says why it cannot be used."""

    config: ModelConfig | None = None
    warnings: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelArchive:
    """An opened archive.

    ``url`` is as registered. ``config`` is the parsed ``config_text``. ``temporary``: ``model_dir`` was made
    by the server and is deleted by ``close``. ``downloaded`` is the file downloaded into the model store for
    it, if any. ``need`` are the bytes that loading it may take. ``held`` are functions that ``close`` calls
    to release other resources.
    """

    url: str
    model_dir: Path
    manifest: Manifest
    config_text: str | None = None
    config: ReadConfig | None = None
    temporary: bool = False
    downloaded: Path | None = None
    need: int = BASE_NEED
    held: list[Callable[[], None]] = field(default_factory=list, compare=False, repr=False)

    def check_handler(self, handler: str) -> None:
        """Refuse a handler outside the archive or in the standard library (F59). Raises ``InvalidModel``.

        If the archive has a file with the name of a standard module, the handler is that file.
        """
        try:
            check_handler(handler)
        except InvalidModel as error:
            raise _of_archive(error, self.url) from error
        module = handler.partition(":")[0].rpartition("/")[2].removesuffix(".py")
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names and not (self.model_dir / f"{top}.py").is_file():
            problem = f"Invalid handler {handler!r}: {top} is a standard module of Python."
            raise _of_archive(InvalidModel(problem), self.url)

    def close(self) -> None:
        """Delete what was unpacked; directories of the model store stay. Idempotent."""
        while self.held:
            self.held.pop()()
        if self.temporary:
            shutil.rmtree(self.model_dir, ignore_errors=True)

    def remove(self) -> None:
        """``close``, and delete the downloaded file too: the model is unregistered (reference 10.4)."""
        self.close()
        if self.downloaded is not None:
            with contextlib.suppress(OSError):
                self.downloaded.unlink(missing_ok=True)


def nameless(url: str, manifest: Manifest) -> InvalidModel:
    """The error if neither manifest nor registration has a model name.

    As in TorchServe, an archive without a manifest can be served if the registration has name and handler.
    """
    problem = "is missing" if manifest.missing else "has no modelName"
    return InvalidModel(
        f"Model name is not defined. Archive {url!r}: {MANIFEST_PATH} {problem}, "
        "and the registration gives no model_name."
    )


def open_archive(
    path: Path,
    url: str,
    workdir: Path,
    *,
    temporary: bool = False,
    name: str | None = None,
) -> ModelArchive:
    """Open the file or directory at ``path``; not on the event loop, as it blocks.

    Files are unpacked into a new directory of ``workdir``, called ``name`` if given; directories are used in
    place (``temporary``: the server made it). Raises ``InvalidModel`` for content that cannot be served and
    ``InternalError`` if it cannot be stored, and leaves nothing behind then.
    """
    packed = not path.is_dir()
    folder = path if packed or temporary else _only_folder(path)
    model_dir = workdir / (name or uuid4().hex) if packed else folder
    opened = ModelArchive(url, model_dir, Manifest(), temporary=temporary or packed)
    with contextlib.ExitStack() as undo:
        undo.callback(opened.close)
        if packed:
            _unpack(path, url, model_dir)
        archive = _described(opened, path.name)
        undo.pop_all()
    return archive


def _unpack(path: Path, url: str, model_dir: Path) -> None:
    try:
        model_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unpack(path, model_dir)
    except OSError as error:
        raise InternalError(f"Failed to save model: {url}: {error.strerror or error}") from error


def _described(archive: ModelArchive, name: str) -> ModelArchive:
    """The archive with its manifest and configuration read."""
    data = _read(archive.model_dir, MANIFEST_PATH, name, _MAX_MANIFEST)
    try:
        manifest = Manifest(missing=True) if data is None else parse_manifest(data)
    except InvalidModel as error:
        raise _of_archive(error, archive.url) from error
    if manifest.handler is not None:
        archive.check_handler(manifest.handler)
    config_text = _config_text(archive.model_dir, manifest.config_file, name)
    return replace(archive, manifest=manifest, config_text=config_text, need=need_of(archive.model_dir))


def _of_archive(error: InvalidModel, url: str) -> InvalidModel:
    """The error in the words that clients of TorchServe know, followed by the archive."""
    return InvalidModel(f"{error.message} Archive: {url!r}.")


def _config_text(model_dir: Path, file: str | None, name: str) -> str | None:
    if file is None:
        return None
    data = _read(model_dir, file, name, _MAX_CONFIG)
    if data is None:
        raise InvalidModel(f"Invalid archive {name!r}: configFile {file!r} of {MANIFEST_PATH} is missing.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidModel(f"Invalid archive {name!r}: {file!r} is not UTF-8 text.") from error


def _read(model_dir: Path, file: str, name: str, most: int) -> bytes | None:
    """A small file's content, ``None`` if it does not exist; ``name`` is the archive's."""
    path = model_dir / file
    try:
        if not path.is_file():
            return None
        with path.open("rb") as opened:
            data = opened.read(most + 1)
    except OSError as error:
        raise InvalidModel(f"Invalid archive {name!r}: {file!r} cannot be read: {error.strerror}.") from error
    if len(data) > most:
        raise InvalidModel(f"Invalid archive {name!r}: {file!r} is larger than {most} bytes.")
    return data


def _only_folder(path: Path) -> Path:
    """The only folder in a directory without anything else (reference 10.3), or the directory itself."""
    try:
        child, *others = path.iterdir()
    except ValueError:
        return path
    except OSError as error:
        raise InvalidModel(f"Invalid archive {path.name!r}: it cannot be read: {error.strerror}.") from error
    inner = not others and child.is_dir() and not child.is_symlink() and child.name != "MAR-INF"
    return child if inner else path
