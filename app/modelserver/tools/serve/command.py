"""The command ``modelserver serve``."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
import signal
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.errors import ConfigError
from modelserver.models.settings.load import load_settings
from modelserver.tools.serve.early_imports import EarlyImports
from modelserver.tools.serve.options import ServeOptions, build_parser, read_options

if TYPE_CHECKING:
    from modelserver.tools.serve.session import Session

__all__ = ["build_parser", "main"]

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Serves until it is stopped; returns the exit status."""
    try:
        return serve(read_options(arguments))
    except ConfigError as error:
        print(advised(str(error)), flush=True)
        return 1


def serve(options: ServeOptions) -> int:
    """Serves until it is stopped; returns the exit status. Raises ConfigError."""
    if options.parent is not None:
        end_with(options.parent)
    loaded = load_settings(options.flags(), os.environ, Path.cwd())
    import uvloop  # noqa: PLC0415

    from modelserver.tools.serve.console import YELLOW, Lines  # noqa: PLC0415

    folder = None if options.file is None else options.file.parent
    lines = Lines(folder)

    async def run() -> int:
        early = EarlyImports(options, loaded.settings)
        try:
            # The import runs in a thread while the spawner starts, without garbage collection for speed.
            gc.disable()
            made = await asyncio.to_thread(import_module, "modelserver.tools.serve.session")
            gc.enable()
            session: Session = made.Session(options, loaded, lines, early.spawner)
            await session.run()
            return session.status
        finally:
            await early.close()

    try:
        for warning in loaded.warnings:
            lines.say(f"warning: {warning}", YELLOW)
        return uvloop.run(run())
    finally:
        lines.close()


def end_with(parent: int) -> None:
    """Ends the server in good order once its parent process is gone, however that ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        # The parent ended before prctl was called.
        os._exit(1)


def advised(problem: str) -> str:
    """The problem, with what to do about a port in use."""
    taken = re.search(r"Cannot listen on (\w+)_address=http://[^:]+:(\d+): Address already in use", problem)
    if taken is None:
        return problem
    return (
        f"Port {taken[2]}, for {taken[1]}, is in use by another program: choose others with --port "
        "(it and the next two are used)."
    )
