"""Files that are made once and mapped by all workers: prepared weights, compiled code.

The folder is ``$MODELSERVER_CACHE``, or ``modelserver`` in the user's cache folder; ``off`` means none. It
must belong to this user and be writable by nobody else: its content is run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from modelserver.models.environments.cache_folder import cache_folder as cache_folder_of

logger = logging.getLogger(__name__)

LIMIT = 8 << 30  # maximum bytes of a folder; the longest unused go first
ABANDONED_AFTER = 86_400.0  # seconds after which nobody is writing what has a hidden name


def cache_folder(name: str) -> Path | None:
    """The folder of that name in the cache, created if needed; None if there is no safe place for it."""
    folder = cache_folder_of(name)
    if folder is not None:
        _remove_leftovers(folder)
    return folder


def _remove_leftovers(folder: Path) -> None:
    """Remove the hidden files and folders of processes that were killed, if nobody continues them."""
    for path in folder.glob(".*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime < ABANDONED_AFTER:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock of a process that dies is released."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def write(path: Path, content: Any) -> None:
    """Save tensors, lists, mappings and numbers under ``path``, whole or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    os.close(descriptor)
    try:
        torch.save(content, name)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


_mapped = partial(torch.load, map_location="cpu", weights_only=True, mmap=True)


def read(path: Path, load: Callable[[Path], Any] = _mapped) -> Any:
    """What ``load`` makes of a file, by default what :func:`write` saved, its tensors mapped from the file;
    None if there is no such file, or a broken one, which is removed.
    """
    try:
        content = load(path)
        os.utime(path)
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - torch.load raises many things for a broken file
        logger.warning("%s cannot be read and is made anew: %s", path, error)
        path.unlink(missing_ok=True)
        return None
    return content


def prune(folder: Path, limit: int = LIMIT, pattern: str = "*.pt") -> None:
    """Remove the least recently used files, until the others have at most ``limit`` bytes.

    Workers that have mapped one keep it.
    """
    with contextlib.suppress(OSError):
        files = sorted(
            ((path.stat(), path) for path in folder.glob(pattern)), key=lambda each: each[0].st_mtime
        )
        total = sum(status.st_size for status, _ in files)
        for status, path in files[:-1]:
            if total <= limit:
                return
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            total -= status.st_size


def platform() -> tuple[object, ...]:
    """What the content depends on besides the network: torch, and the processor's abilities."""
    return (
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        torch.cpu._is_avx512_bf16_supported(),
        torch.cpu._is_amx_tile_supported(),
    )


def fingerprint(outline: str, tensors: Mapping[str, torch.Tensor], *more: object) -> str:
    """Hex digits that differ if the outline, a tensor's name, form or value, or any of ``more`` does."""
    digest = hashlib.sha256(repr((outline, *map(str, more))).encode())
    for name, tensor in tensors.items():
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        flat = tensor.detach().contiguous().flatten()
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
