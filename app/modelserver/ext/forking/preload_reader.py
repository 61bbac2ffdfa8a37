"""Reads the sources of models in a separate process, once for each state of the files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import TypeAlias

from modelserver.ext.forking import preloading
from modelserver.ext.forking.preloading import Preload

_log = logging.getLogger("modelserver.workers")

# Seconds that reading may take; the process limits its own CPU time and memory.
TIME_LIMIT = 15.0
# Remembered states of models.
_REMEMBERED = 4096

# Bytes of sources that are searched here.
_MOST_SEARCHED = 1 << 20

_State: TypeAlias = tuple[str, str, tuple[tuple[str, int, int, int], ...]]


class PreloadReader:
    """Caches results until files change. If a process crashes or exceeds its limits, nothing is preloaded."""

    def __init__(self) -> None:
        self._preloads: OrderedDict[_State, asyncio.Task[Preload | None]] = OrderedDict()

    async def preload_of(self, model_dir: Path, handler: str) -> Preload | None:
        """Calls :func:`modelserver.ext.forking.preloading.preload_of`; concurrent calls share the result."""
        try:
            state = str(model_dir), handler, await asyncio.to_thread(_files, model_dir)
        except OSError:
            return None
        reading = self._preloads.get(state)
        if reading is None:
            reading = self._preloads[state] = asyncio.create_task(_read(model_dir, handler))
            if len(self._preloads) > _REMEMBERED:
                self._preloads.popitem(last=False)
        try:
            return await asyncio.shield(reading)
        except (OSError, ValueError) as error:
            # Not caused by the files: the next worker tries again.
            self._preloads.pop(state, None)
            _log.warning("The sources in %s could not be read in a separate process: %s", model_dir, error)
            return None


def _files(model_dir: Path) -> tuple[tuple[str, int, int, int], ...]:
    """The state of the sources. Raises OSError."""
    stats = [(path.name, path.stat()) for path in sorted(model_dir.glob("*.py"))]
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)


def _mentions_none(model_dir: Path, handler: str) -> bool:
    """Whether the model brings its handler, and no source has the name of a package worth preloading.

    Searching takes no process. False where there is too much to search. Raises OSError.
    """
    name = Path(handler.partition(":")[0]).name.removesuffix(".py")
    sources = list(model_dir.glob("*.py"))
    if not any(source.stem == name for source in sources):
        return False
    if sum(source.stat().st_size for source in sources) > _MOST_SEARCHED:
        return False
    heavy = re.compile("|".join([*preloading.HEAVY, "modelserver_handlers", r"ts\.torch_handler"]).encode())
    return not any(heavy.search(source.read_bytes()) for source in sources)


async def _read(model_dir: Path, handler: str) -> Preload | None:
    """Raises OSError if no process can be started, ValueError for an invalid answer."""
    if await asyncio.to_thread(_mentions_none, model_dir, handler):
        return None
    heavy = ",".join(sorted(preloading.HEAVY))
    command = [sys.executable, "-I", "-S", preloading.__file__, str(model_dir), handler, heavy]
    process = await asyncio.create_subprocess_exec(
        *command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        answer, _ = await asyncio.wait_for(process.communicate(), TIME_LIMIT)
    except asyncio.TimeoutError:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    preload = json.loads(answer) if process.returncode == 0 else None
    return None if preload is None else Preload(tuple(preload["modules"]), preload["handler"])
