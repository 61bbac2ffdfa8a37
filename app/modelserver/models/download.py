"""Fetching archives into the model store: by http(s), or from a file outside of it (reference 10.4).

A file arrives under a temporary name beside its place and gets its own name when it is complete, without ever
replacing another; whatever fails or is cancelled leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote
from uuid import uuid4

import httpx

from modelserver.errors import Conflict, DownloadFailed, InternalError
from modelserver.models.urls import CheckedTransport, Resolver, UrlPolicy, resolve_host, scheme

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

Progress = Callable[[int, "int | None"], None]
"""Called with the bytes that have arrived and, where known, the bytes to come in all."""

_LOG: Final = logging.getLogger(__name__)
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """Bounds of one download: bytes, redirects, seconds to connect, of silence, and in all."""

    max_bytes: int = 128 << 30
    max_redirects: int = 5
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    total_timeout: float = 3600.0


@dataclass(frozen=True, slots=True)
class Network:
    """How hosts are reached; tests put their own here. Without ``transport`` a fresh HTTP client is used."""

    resolve: Resolver = resolve_host
    transport: httpx.AsyncBaseTransport | None = None


async def download(
    url: str,
    store: Path,
    policy: UrlPolicy,
    progress: Progress | None = None,
    *,
    limits: DownloadLimits | None = None,
    network: Network | None = None,
) -> Path:
    """Fetch an http(s) URL into the store; the policy is asked about it and about every redirect.

    Raises ``ModelNotFound`` if it is not allowed, ``Conflict`` if its file name is taken, ``DownloadFailed``,
    and ``InternalError`` if it cannot be stored.
    """
    policy.check(url)
    limits = limits or DownloadLimits()
    with _Incoming(store, _file_name(url), url, limits.max_bytes) as incoming:
        try:
            fetched = _fetch(
                url, incoming, policy, limits=limits, network=network or Network(), progress=progress
            )
            await asyncio.wait_for(fetched, limits.total_timeout)
        except asyncio.TimeoutError as error:
            raise _failed(url, f"it took longer than {limits.total_timeout:g} seconds") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            _LOG.warning("Download of %s failed: %s", url, error or type(error).__name__)
            raise _failed(url) from error
        return await asyncio.to_thread(incoming.publish)


async def copy_file(
    url: str,
    source: Path,
    store: Path,
    progress: Progress | None = None,
    *,
    limits: DownloadLimits | None = None,
) -> Path:
    """Copy a regular file into the store, under the same rules as a download."""
    limits = limits or DownloadLimits()
    with _Incoming(store, source.name, url, limits.max_bytes) as incoming:
        await asyncio.to_thread(_copy, source, incoming, progress)
        return await asyncio.to_thread(incoming.publish)


class _Incoming:
    """A file on its way into the store; outside of its context only a published one is left."""

    def __init__(self, store: Path, name: str, url: str, max_bytes: int) -> None:
        self._target = store / name
        self._partial = store / f".{uuid4().hex}.part"
        self._url = url
        self._left = max_bytes
        self._max_bytes = max_bytes
        self.size = 0

    def __enter__(self) -> _Incoming:
        if os.path.lexists(self._target):
            raise self._taken()
        try:
            self._file = self._partial.open("xb")
        except OSError as error:
            raise self._unsaved(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def expect(self, size: int | None) -> None:
        """Fail early when more is announced than may come."""
        if size is not None and size > self._max_bytes:
            raise _failed(self._url, f"it is larger than {self._max_bytes} bytes")

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.expect(self.size)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise self._unsaved(error) from error

    def publish(self) -> Path:
        """Give the complete file its name."""
        try:
            self._file.close()
            _rename_to_new(self._partial, self._target)
        except FileExistsError as error:
            raise self._taken() from error
        except OSError as error:
            raise self._unsaved(error) from error
        return self._target

    def _taken(self) -> Conflict:
        return Conflict(f"Model file already exists {self._target.name}")

    def _unsaved(self, error: OSError) -> InternalError:
        return InternalError(f"Failed to save model: {self._url}: {error.strerror or error}")


async def _fetch(
    url: str,
    incoming: _Incoming,
    policy: UrlPolicy,
    *,
    limits: DownloadLimits,
    network: Network,
    progress: Progress | None,
) -> None:
    inner = network.transport or httpx.AsyncHTTPTransport()
    timeout = httpx.Timeout(limits.read_timeout, connect=limits.connect_timeout)
    # What is stored is what was sent: no encoding on the way, hence no bomb in one either.
    headers = {"accept-encoding": "identity", "user-agent": "modelserver"}
    async with httpx.AsyncClient(
        transport=CheckedTransport(policy, url, inner, network.resolve),
        timeout=timeout,
        headers=headers,
        trust_env=False,
        follow_redirects=False,
    ) as client:
        place = url
        for _ in range(limits.max_redirects + 1):
            async with client.stream("GET", place) as response:
                if response.next_request is None:
                    await _store(response, incoming, url, progress)
                    return
                place = _redirected(response, place)
                policy.check(place, asked=url)
    raise _failed(url, f"more than {limits.max_redirects} redirects")


def _redirected(response: httpx.Response, place: str) -> str:
    target = response.next_request
    new = str(target.url) if target is not None else ""
    if scheme(new) not in ("http", "https") or (scheme(place) == "https" and scheme(new) == "http"):
        raise httpx.UnsupportedProtocol(f"redirected from {place} to {new}")
    return new


async def _store(response: httpx.Response, incoming: _Incoming, url: str, progress: Progress | None) -> None:
    if response.status_code != 200:
        raise httpx.HTTPStatusError(
            f"HTTP status {response.status_code}", request=response.request, response=response
        )
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _failed(url, "it came in a content encoding that was not asked for")
    announced = response.headers.get("content-length", "")
    total = int(announced) if announced.isdecimal() else None
    incoming.expect(total)
    async for chunk in response.aiter_raw(_CHUNK):
        await asyncio.to_thread(incoming.write, chunk)
        if progress is not None:
            progress(incoming.size, total)
    if total is not None and incoming.size != total:
        raise httpx.RemoteProtocolError(f"{incoming.size} of {total} bytes arrived")


def _copy(source: Path, incoming: _Incoming, progress: Progress | None) -> None:
    try:
        with source.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            incoming.expect(total)
            while chunk := file.read(_CHUNK):
                incoming.write(chunk)
                if progress is not None:
                    progress(incoming.size, total)
    except OSError as error:
        raise DownloadFailed(f"Failed to download archive from: {incoming._url}") from error


def _rename_to_new(partial: Path, target: Path) -> None:
    """Rename without ever replacing; where hard links do not exist the last check is not atomic."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        partial.rename(target)


def _file_name(url: str) -> str:
    """The last component of the URL's path. Raises ``DownloadFailed`` if that cannot be a file's name."""
    try:
        path = httpx.URL(url).raw_path.decode("ascii").partition("?")[0]
    except httpx.InvalidURL as error:
        raise _failed(url) from error
    name = unquote(path.rpartition("/")[2])
    if (
        not name
        or name.startswith(".")
        or any(character < " " or character in "/\\\x7f" for character in name)
    ):
        raise _failed(url, "it does not end in a file name")
    if len(name.encode()) > 255:
        raise _failed(url, "its file name is too long")
    return name


def _failed(url: str, reason: str = "") -> DownloadFailed:
    text = f"Failed to download archive from: {url}"
    return DownloadFailed(f"{text}: {reason}" if reason else text)
