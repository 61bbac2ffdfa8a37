"""A file being stored in the model store, within limits (reference 10.4).

It has a temporary name until it is complete and never replaces another file; a failed or cancelled transfer
leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from modelserver.errors import DownloadFailed, InternalError, ModelFileExists
from modelserver.models.archives.urls import Resolver, UrlPolicy

if TYPE_CHECKING:
    import httpx


Progress = Callable[[int, "int | None"], None]
_BESIDE: Final = ".beside"
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Transfer:
    """How a file is fetched: limits in bytes and redirects, timeouts in seconds.

    ``resolve`` and ``transport`` reach hosts that ``policy`` allows; without them, the system and a new
    HTTP client do. ``progress`` gets the bytes received and, if known, the total. ``beside`` is the
    downloaded file of a model being replaced: a new file of the same name is stored beside it.
    ``cache_size``: bytes of archives from object stores that are kept. ``signed``: an http(s) URL of S3 is
    requested with the server's credentials. ``trace``: headers that name the trace of the request for it, for
    the host of an http(s) URL.
    """

    max_bytes: int = 128 << 30
    max_redirects: int = 5
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    total_timeout: float = 3600.0
    resolve: Resolver | None = None
    policy: UrlPolicy = field(default_factory=UrlPolicy)
    transport: httpx.AsyncBaseTransport | None = None
    progress: Progress | None = None
    beside: Path | None = None
    cache_size: int = 20 << 30
    signed: bool = False
    trace: tuple[tuple[str, str], ...] = ()


AS_USUAL: Final = Transfer()


class Incoming:
    """A file being stored; leaving the context removes it unless it was published."""

    def __init__(self, store: Path, name: str, url: str, transfer: Transfer = AS_USUAL) -> None:
        self._target = store / name
        self._partial = store / f".{uuid4().hex}.part"
        if transfer.beside is not None and transfer.beside.name == name:
            self._target = store / f".{uuid4().hex}{_BESIDE}"
        self.url = url
        self._transfer = transfer
        self.size = 0

    def __enter__(self) -> Incoming:
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
        """Fail early if the announced size is over the limit."""
        if size is not None and size > self._transfer.max_bytes:
            raise DownloadFailed.of(self.url, f"it is larger than {self._transfer.max_bytes} bytes")

    def write(self, chunk: bytes) -> None:
        """Add to the file. Raises ``InternalError``, and ``DownloadFailed`` over the limit."""
        self.size += len(chunk)
        self.expect(self.size)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise self._unsaved(error) from error

    def copy(self, source: Path) -> None:
        """Add a file's content. Raises ``InternalError``, and ``DownloadFailed`` if it cannot be read."""
        try:
            with source.open("rb") as file:
                total = os.fstat(file.fileno()).st_size
                self.expect(total)
                while chunk := file.read(_CHUNK):
                    self.write(chunk)
                    if self._transfer.progress is not None:
                        self._transfer.progress(self.size, total)
        except OSError as error:
            raise DownloadFailed.of(self.url) from error

    def publish(self) -> Path:
        """Give the complete file its final name."""
        try:
            self._file.close()
            _rename_to_new(self._partial, self._target)
        except FileExistsError as error:
            raise self._taken() from error
        except OSError as error:
            raise self._unsaved(error) from error
        return self._target

    def _taken(self) -> ModelFileExists:
        return ModelFileExists(f"Model file already exists {self._target.name}")

    def _unsaved(self, error: OSError) -> InternalError:
        return InternalError(f"Failed to save model: {self.url}: {error.strerror or error}")


def is_beside(fetched: Path) -> bool:
    """Whether a file was stored beside one of the same name."""
    return fetched.name.startswith(".") and fetched.name.endswith(_BESIDE)


def _rename_to_new(partial: Path, target: Path) -> None:
    """Rename without replacing; without hard links, the check is not atomic."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        partial.rename(target)
