"""From the ``url`` of a registration to its file or directory (reference 5.2, 10.3, 10.4)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from modelserver.errors import InternalError, ModelNotFound
from modelserver.models.archives.incoming import AS_USUAL, Incoming, Transfer
from modelserver.models.archives.single_file import MakeNetwork, SingleFile
from modelserver.models.archives.store import Download, HubModels, ObjectStores
from modelserver.models.archives.urls import UrlPolicy, leaves_its_place, refusal, scheme

if TYPE_CHECKING:
    from modelserver.models.environments.shared_cache import Use

_OUTSIDE: Final = "it is outside the model store, where only --models and load_models may lead"


@dataclass(frozen=True, slots=True)
class Located:
    """The resolved path of an archive or a model directory.

    ``downloaded`` is the file that was fetched into the model store; ``temporary`` marks a directory that the
    server wrote; ``single`` is a handler's script or a model file. ``open_archive`` needs them. ``held``
    keeps an archive in the cache of the machine until ``release``.
    """

    url: str
    path: Path
    downloaded: Path | None = None
    temporary: bool = False
    single: SingleFile | None = None
    held: Use | None = None

    def release(self) -> None:
        """The file is not needed any more."""
        if self.held is not None:
            self.held.end()


async def locate(
    url: str,
    store: Path | str | None,
    policy: UrlPolicy,
    workdir: Path,
    transfer: Transfer = AS_USUAL,
    *,
    trusted: bool = False,
    stores: Mapping[str, ObjectStores] = MappingProxyType({}),
    download: Download | None = None,
    network: MakeNetwork | None = None,
) -> Located:
    """Find or fetch what ``url`` names, with checks in the order of reference 5.2.

    ``store`` is a folder, or the URL of one in an object store. ``trusted``: the operator named ``url`` at
    the start, so a path may lead anywhere on this machine, and any object store is allowed. ``stores``
    are by the schemes of their URLs, ``download`` fetches from http(s) URLs, and ``network`` makes networks
    of torchvision, if something does.

    Raises ``ModelNotFound`` (nothing there, or not allowed), ``BadRequest`` (malformed ``torchvision://``),
    ``Conflict`` (a download's file name is taken), ``DownloadFailed``, ``InternalError`` (cannot be stored).
    """
    if not url:
        raise ModelNotFound("empty url")
    if leaves_its_place(url) and not (trusted and scheme(url) is None):
        raise ModelNotFound(f"Relative path is not allowed in url: {url}")
    kind = scheme(url)
    is_here = trusted and os.path.isabs(url)
    if kind in stores or (isinstance(store, str) and kind is None and not is_here):
        return await _from_object_store(url, store, policy, workdir, transfer, trusted=trusted, stores=stores)
    if isinstance(store, str):
        store = None
    match kind:
        case None:
            return await asyncio.to_thread(_from_path, url, store, trusted=trusted)
        case "http" | "https":
            if download is None:
                raise _missing(url, "this server downloads nothing")
            await load_client()
            policy.check(url)
            if transfer.signed and not policy.operator_set:
                raise refusal(url, "s3_sse_kms=true needs an allowed_urls in the configuration")
            path = await download(url, _needed(store), workdir, replace(transfer, policy=policy))
            return Located(url, path, downloaded=path)
        case "file":
            return await _from_file_url(url, store, policy, transfer, trusted=trusted)
        case "torchvision" if network is not None:
            return await asyncio.to_thread(_from_torchvision, url, store, workdir, network)
        case _:
            raise _missing(url)


def with_manifest(located: Located, url: str, workdir: Path, hub: HubModels) -> Located:
    """The archive's folder of a model of the Hugging Face hub; what is an archive already is left as it is.

    Raises ``InvalidModel``, and ``InternalError`` if it cannot be stored.
    """
    try:
        folder = hub.lay_out(located.path, url, workdir)
    except OSError as error:
        raise InternalError(f"Failed to save model: {url}: {error.strerror or error}") from error
    return located if folder is None else Located(url, folder, temporary=True)


async def _from_object_store(
    url: str,
    store: Path | str | None,
    policy: UrlPolicy,
    workdir: Path,
    transfer: Transfer,
    *,
    trusted: bool,
    stores: Mapping[str, ObjectStores],
) -> Located:
    """An object or a folder, or a name in a model store that is one."""
    if scheme(url) is not None and not trusted:
        await load_client()
        policy.check(url)
    source = url
    if scheme(url) is None:
        name = os.path.basename(url.rstrip("/"))
        if not name or name == ".":
            raise _missing(url)
        source = f"{str(store).rstrip('/')}/{name}"
    if (remote := stores.get(scheme(source) or "")) is None:
        raise _missing(url, "this server has no such object store")
    path, held = await remote.fetch(url, source, workdir, transfer)
    return Located(url, path, held=held)


async def _from_file_url(
    url: str, store: Path | None, policy: UrlPolicy, transfer: Transfer, *, trusted: bool
) -> Located:
    """Files in the store are used as they are, others are copied; directories are used in place."""
    path = _path_of(url)
    if path is not None and trusted and (existing := await asyncio.to_thread(_existing, path)):
        return Located(url, existing)
    if store is not None and path is not None and (inside := await asyncio.to_thread(_inside, path, store)):
        return Located(url, inside)
    await load_client()
    policy.check(url)
    resolved = None if path is None else await asyncio.to_thread(_existing, path)
    if resolved is None:
        raise _missing(url)
    if await asyncio.to_thread(resolved.is_dir):
        return Located(url, resolved)
    copied = await copy_file(url, resolved, _needed(store), transfer)
    return Located(url, copied, downloaded=copied)


async def load_client() -> None:
    """Import the HTTP client (60 ms) in a thread, so that the event loop is not blocked."""
    await asyncio.to_thread(import_module, "httpx")


async def copy_file(url: str, source: Path, store: Path, transfer: Transfer = AS_USUAL) -> Path:
    """Copy a regular file into the store, under the same rules as a download."""
    with Incoming(store, source.name, url, transfer) as incoming:
        await asyncio.to_thread(incoming.copy, source)
        return await asyncio.to_thread(incoming.publish)


def _path_of(url: str) -> Path | None:
    """The absolute path of a ``file://`` URL on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    path = Path(unquote(parts.path))
    return path if parts.netloc.lower() in ("", "localhost") and path.is_absolute() else None


def _from_path(url: str, store: Path | None, *, trusted: bool) -> Located:
    """A file or directory; a script or model file is marked as such, with its own paths resolved."""
    single = SingleFile.parse(url)
    if single is None:
        return Located(url, _local(url, store, trusted=trusted))
    path = _single(single.path, store, trusted=trusted)
    if path.is_dir():
        return Located(url, path)
    model_file = single.model_file and str(_single(single.model_file, store, trusted=trusted))
    return Located(url, path, single=replace(single, path=str(path), model_file=model_file))


def _single(url: str, store: Path | None, *, trusted: bool) -> Path:
    """Finds a file as :func:`_local` does, but the operator's absolute path also outside of the store."""
    existing = _existing(Path(url)) if trusted and os.path.isabs(url) else None
    return _local(url, store, trusted=trusted) if existing is None else existing


def _local(url: str, store: Path | None, *, trusted: bool) -> Path:
    """Reference 10.3, except that paths from clients must lead into the store."""
    root = _needed(store)
    named, literal = root / os.path.basename(url.rstrip("/")), Path(url)
    outside = False
    for path, is_meant in ((named, Path.is_file), (literal, Path.is_dir), (named, Path.is_dir)):
        existing = _existing(path)
        if existing is None or not is_meant(existing):
            continue
        if (path is literal and trusted) or _inside(path, root) is not None:
            return existing
        outside = True
    existing = _existing(literal) if trusted else None
    if existing is not None and existing.is_file():
        return existing
    raise _missing(url, _OUTSIDE if outside else "")


def _inside(path: Path, store: Path) -> Path | None:
    """The resolved path of an existing file or directory below the store, or ``None``.

    A link in the store is followed wherever it leads: only operators can put it there.
    """
    resolved, root = _existing(path), _existing(store)
    if resolved is None or root is None:
        return None
    placed = Path(os.path.abspath(path)).parents  # without following links
    is_inside = root in resolved.parents or root in placed or Path(os.path.abspath(store)) in placed
    return resolved if is_inside else None


def _existing(path: Path) -> Path | None:
    """The resolved path of a regular file or a directory, or ``None``."""
    try:
        resolved = path.resolve(strict=True)
        return resolved if resolved.is_file() or resolved.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # loops, NUL, names too long, no permission
        return None


def _from_torchvision(url: str, store: Path | None, workdir: Path, make: MakeNetwork) -> Located:
    def weights(name: str) -> Path:
        path = _inside(_needed(store) / name, _needed(store))
        if path is None:
            raise _missing(url, f"{name} is not in the model store")
        return path

    try:
        return Located(url, make(url, weights, workdir), temporary=True)
    except OSError as error:
        raise InternalError(f"Failed to save model: {url}: {error.strerror or error}") from error


def _missing(url: str, reason: str = "") -> ModelNotFound:
    text = f"Model not found at: {url}"
    return ModelNotFound(f"{text}: {reason}" if reason else text)


def _needed(store: Path | None) -> Path:
    """Raises ``ModelNotFound`` where there is no store."""
    if store is None:
        raise ModelNotFound("Model store has not been configured.")
    return store
