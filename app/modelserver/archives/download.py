"""Fetching archives into the model store: by http(s), or from a file outside of it (reference 10.4).

A file arrives under a temporary name beside its place and gets its own name when it is complete, without ever
replacing another; whatever fails or is cancelled leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

from modelserver.archives.incoming import AS_USUAL, Incoming, Transfer, failed
from modelserver.errors import ModelNotFound

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.archives.incoming import Progress
    from modelserver.archives.urls import UrlPolicy

_LOG: Final = logging.getLogger(__name__)
_CHUNK: Final = 1 << 20


async def load_client() -> None:
    """Import the HTTP client (60 ms) in a thread, so that a server that serves goes on serving."""
    await asyncio.to_thread(import_module, "modelserver.archives.fetching")


def needed(store: Path | None) -> Path:
    """Raises ``ModelNotFound`` where there is no store."""
    if store is None:
        raise ModelNotFound("Model store has not been configured.")
    return store


async def download(url: str, store: Path | None, policy: UrlPolicy, transfer: Transfer = AS_USUAL) -> Path:
    """Fetch an http(s) URL into the store; the policy is asked about it and about every redirect.

    A file beside it whose name it would have is left alone; then the path is a hidden one, see
    :func:`is_beside`.

    Raises ``ModelNotFound`` if it is not allowed, ``ModelFileExists`` if its file name is taken,
    ``DownloadFailed``, and ``InternalError`` if it cannot be stored.
    """
    await load_client()
    from modelserver.archives import fetching  # noqa: PLC0415

    policy.check(url)
    with Incoming(needed(store), fetching.file_name(url), url, transfer) as incoming:
        try:
            fetched = fetching.fetch(incoming, policy, transfer)
            await asyncio.wait_for(fetched, transfer.total_timeout)
        except asyncio.TimeoutError as error:
            raise failed(url, f"it took longer than {transfer.total_timeout:g} seconds") from error
        except fetching.FAILURES as error:
            _LOG.warning("Download of %s failed: %s", url, error or type(error).__name__)
            raise failed(url) from error
        return await asyncio.to_thread(incoming.publish)


async def copy_file(url: str, source: Path, store: Path, transfer: Transfer = AS_USUAL) -> Path:
    """Copy a regular file into the store, under the same rules as a download."""
    with Incoming(store, source.name, url, transfer) as incoming:
        await asyncio.to_thread(_copy, source, incoming, transfer.progress)
        return await asyncio.to_thread(incoming.publish)


def _copy(source: Path, incoming: Incoming, progress: Progress | None) -> None:
    try:
        with source.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            incoming.expect(total)
            while chunk := file.read(_CHUNK):
                incoming.write(chunk)
                if progress is not None:
                    progress(incoming.size, total)
    except OSError as error:
        raise failed(incoming.url) from error
