"""The process that talks to object stores: ``python -m modelserver.ext.stores``.

The libraries are large, block, and start threads; here they neither hold up the server nor stay in its
memory, and a fetch can be killed. The task comes as a line of JSON on the standard input, whose end is the
end of this process; messages go to the standard output, a line each.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import threading
import warnings
from pathlib import Path
from typing import IO, Final

import msgspec

from modelserver.errors import DownloadFailed, InternalError, InvalidModel, ModelNotFound, ModelServerError
from modelserver.ext.stores.address import StoreAddress
from modelserver.ext.stores.cache import Cache
from modelserver.ext.stores.stores import Item, is_missing, missing_error, open_store, reason_of
from modelserver.models.environments.shared_cache import Use

_MEMORY: Final = 8 << 30  # bytes of address space, most of which threads only reserve


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: fetch an archive into the cache, or with ``lists`` name what is in a folder.

    ``url`` is for errors; ``folder`` is the server's, to which paths in the environment are relative; sizes
    are in bytes.
    """

    url: str
    address: StoreAddress
    lists: bool
    folder: str
    cache: str
    cache_size: int
    max_bytes: int

    @property
    def is_repository(self) -> bool:
        """Whether it is all of a repository on the Hugging Face hub."""
        return self.address.scheme == "hf" and not self.address.key and not self.lists


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress (``received`` of ``total`` bytes), or the end: ``path``, ``snapshot``, ``names`` or ``error``.

    ``snapshot`` is the folder of a model in the cache of the Hugging Face hub. ``waits``: for another process
    that fetches the same. ``names`` are of files and, ending in a slash, of folders; ``error`` is the class,
    ``text`` its message.
    """

    received: int = 0
    total: int = 0
    waits: bool = False
    path: str = ""
    snapshot: str = ""
    names: list[str] | None = None
    error: str = ""
    text: str = ""


class _MessageWriter:
    """Writes the messages."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self._out.write(msgspec.json.encode(message) + b"\n")
            self._out.flush()

    def progress(self, received: int, total: int) -> None:
        self(Message(received=received, total=total))

    def waits(self) -> None:
        self(Message(waits=True))


async def perform(task: Task, writer: _MessageWriter) -> tuple[Message, Use | None]:
    """The last message, and what is held as long as the server needs it."""
    try:
        if task.is_repository:
            from modelserver.ext.stores.hub import snapshot  # noqa: PLC0415 - for the hub only

            folder = snapshot(task.address, task.url, task.max_bytes, writer.progress)
            if folder is not None:
                return Message(snapshot=str(folder)), None
        opened = open_store(task.address)
        if task.lists:
            names = [f"{name}/" if is_folder else name for name, is_folder in opened.names()]
            return Message(names=names), None
        items = opened.items()
        _check(items, task)
        cache = Cache(Path(task.cache), task.cache_size)
        path, use = await cache.hold(opened, items, task.url, writer.progress, writer.waits)
        return Message(path=str(path)), use
    except ModelServerError as error:
        final = error
    except Exception as error:  # noqa: BLE001 - libraries raise anything
        final = missing_error(task.url) if is_missing(error) else DownloadFailed(reason_of(error))
    return Message(error=type(final).__name__, text=_named(task.url, final)), None


def _check(items: list[Item], task: Task) -> None:
    """Raises ``ModelNotFound`` and ``DownloadFailed``."""
    if not items:
        raise missing_error(task.url)
    if sum(item.size for item in items) > task.max_bytes:
        raise DownloadFailed(f"it is larger than {task.max_bytes} bytes")


def _named(url: str, error: ModelServerError) -> str:
    if isinstance(error, (ModelNotFound, InvalidModel)):
        return error.message
    start = "Failed to save model" if isinstance(error, InternalError) else "Failed to download archive from"
    return f"{start}: {url}: {error.message}"


def _end_with(server: IO[bytes]) -> None:
    """Ends this process when the server does."""
    server.read()
    os._exit(0)


def main() -> None:
    """The process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Standard output is for messages only: what libraries print goes to standard error.
    writer = _MessageWriter(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    logging.disable()
    warnings.simplefilter("ignore")
    server = sys.stdin.buffer
    task = msgspec.json.decode(server.readline(), type=Task)
    if not task.is_repository:
        # The hub's library maps what it fetches.
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.chdir(task.folder)
    threading.Thread(target=_end_with, args=(server,), daemon=True).start()
    message, held = asyncio.run(perform(task, writer))
    writer(message)
    if held is not None:
        threading.Event().wait()
    os._exit(0)
