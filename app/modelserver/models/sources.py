"""From the ``url`` of a registration to the file or directory it stands for (reference 5.2, 10.3, 10.4)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from modelserver.errors import InternalError, ModelNotFound
from modelserver.models.download import DownloadLimits, Network, Progress, copy_file, download, load_client
from modelserver.models.torchvision_url import TorchvisionSource
from modelserver.models.urls import UrlPolicy, leaves_its_place, scheme

_NO_STORE: Final = "Model store has not been configured."


@dataclass(frozen=True, slots=True)
class Located:
    """Where a model lies: an archive or a model directory, its path resolved.

    ``downloaded`` is the file that was fetched into the model store; ``temporary`` marks a directory that the
    server wrote itself. Both are what ``open_archive`` wants to know.
    """

    url: str
    path: Path
    downloaded: Path | None = None
    temporary: bool = False


async def locate(
    url: str,
    store: Path | None,
    policy: UrlPolicy,
    workdir: Path,
    progress: Progress | None = None,
    *,
    limits: DownloadLimits | None = None,
    network: Network | None = None,
    beside: Path | None = None,
) -> Located:
    """Find or fetch what ``url`` names; checks come in the order of reference 5.2.

    ``beside`` is the downloaded file of a model that is to be replaced: its name is not taken, and it stays.

    Raises ``ModelNotFound`` (nothing there, or not allowed), ``BadRequest`` (malformed ``torchvision://``),
    ``Conflict`` (a download's file name is taken), ``DownloadFailed``, ``InternalError`` (cannot be stored).
    """
    if not url:
        raise ModelNotFound("empty url")
    if leaves_its_place(url):
        raise ModelNotFound(f"Relative path is not allowed in url: {url}")
    match scheme(url):
        case None:
            return Located(url, await asyncio.to_thread(_in_store, url, store))
        case "http" | "https":
            await load_client()
            policy.check(url)
            path = await download(
                url, _needed(store), policy, progress, limits=limits, network=network, beside=beside
            )
            return Located(url, path, downloaded=path)
        case "file":
            return await _from_file_url(url, store, policy, progress, limits, beside=beside)
        case "torchvision":
            return await asyncio.to_thread(_from_torchvision, url, store, workdir)
        case _:
            raise _not_found(url)


async def _from_file_url(
    url: str,
    store: Path | None,
    policy: UrlPolicy,
    progress: Progress | None,
    limits: DownloadLimits | None,
    *,
    beside: Path | None = None,
) -> Located:
    """What lies in the store is used as it is; other files are copied, other directories used in place."""
    path = _path_of(url)
    if store is not None and path is not None and (inside := await asyncio.to_thread(_inside, path, store)):
        return Located(url, inside)
    await load_client()
    policy.check(url)
    resolved = None if path is None else await asyncio.to_thread(_existing, path)
    if resolved is None:
        raise _not_found(url)
    if await asyncio.to_thread(resolved.is_dir):
        return Located(url, resolved)
    copied = await copy_file(url, resolved, _needed(store), progress, limits=limits, beside=beside)
    return Located(url, copied, downloaded=copied)


def _path_of(url: str) -> Path | None:
    """The absolute path of a ``file://`` URL of this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    path = Path(unquote(parts.path))
    return path if parts.netloc.lower() in ("", "localhost") and path.is_absolute() else None


def _in_store(url: str, store: Path | None) -> Path:
    """Reference 10.3, except that every path must resolve inside the store."""
    root = _needed(store)
    named, given = _existing(root / os.path.basename(url.rstrip("/"))), _existing(Path(url))
    if named is not None and named.is_file():
        found = [named]
    else:
        found = [path for path in (given, named) if path is not None and path.is_dir()]
    for path in found:
        if (inside := _inside(path, root)) is not None:
            return inside
    raise _not_found(url, "it lies outside of the model store" if found else "")


def _inside(path: Path, store: Path) -> Path | None:
    """The resolved path of an existing file or directory below the store, or ``None``."""
    resolved, root = _existing(path), _existing(store)
    return resolved if resolved is not None and root is not None and root in resolved.parents else None


def _existing(path: Path) -> Path | None:
    """The resolved path of a regular file or a directory, or ``None``."""
    try:
        resolved = path.resolve(strict=True)
        return resolved if resolved.is_file() or resolved.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # loops, NUL, names too long, no permission
        return None


def _from_torchvision(url: str, store: Path | None, workdir: Path) -> Located:
    source = TorchvisionSource.parse(url)
    weights = None
    if source.weights_file is not None:
        weights = _inside(_needed(store) / source.weights_file, _needed(store))
        if weights is None:
            raise _not_found(url, f"{source.weights_file} is not in the model store")
    try:
        return Located(url, source.write(workdir, weights), temporary=True)
    except OSError as error:
        raise InternalError(f"Failed to save model: {url}: {error.strerror or error}") from error


def _needed(store: Path | None) -> Path:
    if store is None:
        raise ModelNotFound(_NO_STORE)
    return store


def _not_found(url: str, reason: str = "") -> ModelNotFound:
    text = f"Model not found at: {url}"
    return ModelNotFound(f"{text}: {reason}" if reason else text)
