"""Has the sources of models read by a process of its own, once for each state that their files are in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

from modelserver.pools import preloading
from modelserver.pools.preloading import Preload

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("modelserver.workers")

# Seconds that reading may take; its process limits its own use of processor and memory.
TIME_LIMIT = 15.0
# What is remembered, in states of models.
_REMEMBERED = 256

_State: TypeAlias = tuple[str, str, tuple[tuple[str, int, int, int], ...]]


class PreloadReader:
    """Remembers what it found, so that what did not change is not read again.

    A process that crashes, hangs or takes too much means only that nothing is to be preloaded.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[_State, asyncio.Task[Preload | None]] = OrderedDict()

    async def preload_of(self, model_dir: Path, handler: str) -> Preload | None:
        """As that of :mod:`modelserver.pools.preloading`. Workers that start at once share the answer."""
        try:
            state = str(model_dir), handler, await asyncio.to_thread(_files, model_dir)
        except OSError:
            return None
        reading = self._found.get(state)
        if reading is None:
            reading = self._found[state] = asyncio.create_task(_read(model_dir, handler))
            if len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)
        try:
            return await asyncio.shield(reading)
        except (OSError, ValueError) as error:
            # Not the files' fault: the next worker tries again.
            self._found.pop(state, None)
            _log.warning("The sources in %s could not be read beside the server: %s", model_dir, error)
            return None


def _files(model_dir: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What tells whether a source was changed. Raises OSError."""
    stats = [(path.name, path.stat()) for path in sorted(model_dir.glob("*.py"))]
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)


async def _read(model_dir: Path, handler: str) -> Preload | None:
    """Raises OSError where no process can be started, ValueError where its answer is none."""
    heavy = ",".join(sorted(preloading.HEAVY))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", preloading.__file__, str(model_dir), handler, heavy),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
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
