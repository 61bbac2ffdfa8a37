"""The server's side of the process that talks to object stores."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from modelserver.errors import BadRequest, DownloadFailed, InternalError, InvalidModel, ModelNotFound
from modelserver.ext.stores.address import StoreAddress, parse_address, signed_address
from modelserver.ext.stores.process import Message, Task
from modelserver.models.archives.incoming import Incoming, Transfer
from modelserver.models.environments.cache_folder import cache_folder
from modelserver.models.environments.shared_cache import CacheEntry, Use

_SILENCE: Final = 5  # times the timeout for reading: the libraries try again themselves
_AS_USUAL: Final = Transfer()
_LISTING: Final = 60.0  # seconds
_FRESH: Final = 5.0  # seconds
_LONGEST_LINE: Final = 64 << 20

# What the process may say, by name; anything else is an error of its own.
_ERRORS: Final = {each.__name__: each for each in (BadRequest, DownloadFailed, InvalidModel, ModelNotFound)}
Result = TypeVar("Result")
_decode: Final = msgspec.json.Decoder(Message).decode


async def fetch(
    url: str, address: StoreAddress, workdir: Path, transfer: Transfer = _AS_USUAL
) -> tuple[Path, Use | None]:
    """The archive at ``address``, in the cache of the machine; it stays there until its use ends.

    It may be the folder of a model in the cache of the Hugging Face hub instead, which is not held.
    ``workdir`` has the cache where the user has none. If the caller is cancelled, the process is killed.
    Raises ``ModelNotFound``, ``DownloadFailed``, ``InternalError``.
    """
    folder = await asyncio.to_thread(cache_folder, "downloads")
    task = _task(url, address, folder or workdir / "downloads", transfer)
    silence = transfer.read_timeout * _SILENCE
    return await _within(transfer.total_timeout, url, _fetch(task, transfer, silence))


async def download_signed(url: str, store: Path, workdir: Path, transfer: Transfer) -> Path:
    """Stores the object of S3 at an http(s) URL as any download. Raises as :func:`fetch`, ``BadRequest``."""
    address = signed_address(url, os.environ)
    path, held = await fetch(url, address, workdir, transfer)
    try:
        with Incoming(store, address.name, url, replace(transfer, progress=None)) as incoming:
            await asyncio.to_thread(incoming.copy, path)
            return await asyncio.to_thread(incoming.publish)
    finally:
        if held is not None:
            held.end()


async def _fetch(task: Task, transfer: Transfer, silence: float) -> tuple[Path, Use | None]:
    async with _messages(task, silence) as messages:
        async for message in messages:
            if message.snapshot:
                return Path(message.snapshot), None
            if message.path:
                path = Path(message.path)
                # The process holds its use until this server has one.
                use = CacheEntry(path.parent).use()
                if use is None:
                    break
                return path, use
            if message.total and transfer.progress is not None:
                transfer.progress(message.received, message.total)
    raise InternalError(f"Failed to save model: {task.url}: it was removed from the cache.")


async def names(url: str) -> list[str]:
    """What is in the folder at a URL; folders end in a slash. Raises as :func:`fetch`, and ``BadRequest``."""
    task = _task(url, parse_address(url), Path("/"), _AS_USUAL, lists=True)
    return await _within(_LISTING, url, _names(task))


async def _names(task: Task) -> list[str]:
    async with _messages(task, _LISTING) as messages:
        async for message in messages:
            if message.names is not None:
                return message.names
    return []


class Listing:
    """The names in a folder of a store: asked for once at a time, and kept for a few seconds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = asyncio.Lock()
        self._names: list[str] = []
        self._until = 0.0

    async def names(self) -> list[str]:
        async with self._lock:
            if time.monotonic() > self._until:
                self._names = await names(self._url)
                self._until = time.monotonic() + _FRESH
            return self._names


async def _within(seconds: float, url: str, work: Coroutine[None, None, Result]) -> Result:
    """Raises DownloadFailed if it takes longer."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as error:
        raise DownloadFailed.of(url, f"it took longer than {seconds:g} seconds") from error


def _task(url: str, address: StoreAddress, cache: Path, transfer: Transfer, *, lists: bool = False) -> Task:
    return Task(
        url=url,
        address=address,
        lists=lists,
        folder=os.getcwd(),
        cache=str(cache),
        cache_size=transfer.cache_size,
        max_bytes=transfer.max_bytes,
    )


@contextlib.asynccontextmanager
async def _messages(task: Task, silence: float) -> AsyncIterator[AsyncIterator[Message]]:
    """What a new process says about the task; it ends with the context."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "modelserver.ext.stores",
            # `-m` searches the current directory first, so nobody else may write to it.
            cwd="/",
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
    except OSError as error:
        raise InternalError(f"A helper process cannot be started: {error.strerror or error}.") from error
    try:
        yield _read(process, task, silence)
    finally:
        await _end(process)


async def _read(process: Process, task: Task, silence: float) -> AsyncIterator[Message]:
    """Raises the error that the process reports, ``InternalError`` if it says nothing any more."""
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    assert process.stdout is not None  # noqa: S101
    with contextlib.suppress(ConnectionError):
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        await process.stdin.drain()
    patience: float | None = silence
    while True:
        try:
            line = await asyncio.wait_for(process.stdout.readline(), patience)
        except asyncio.TimeoutError as error:
            raise DownloadFailed.of(task.url, f"nothing arrived for {silence:g} seconds") from error
        if not line:
            raise InternalError(
                f"{task.url}: the process that fetches it ended with status {await process.wait()}."
            )
        message = _decode(line)
        if message.error:
            raise _ERRORS.get(message.error, InternalError)(message.text)
        patience = None if message.waits else silence
        yield message


async def _end(process: Process) -> None:
    """Waits for the end of a killed process, even if the caller is cancelled."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    ended = asyncio.ensure_future(process.wait())
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        await asyncio.wait({ended})
        raise
