"""The standard streams of a process: pipes whose ends are read here, line by line."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from modelserver.workers.output import LineReader, OutputTail

if TYPE_CHECKING:
    from modelserver.workers.printed_metrics import Measured


class Capture:
    """Two pipes for a process that is to be started: ``outputs`` are its ends, for output and errors."""

    def __init__(self) -> None:
        out, err = os.pipe(), os.pipe()
        self.tail = OutputTail()
        self._inputs = (out[0], err[0])
        self.outputs = (out[1], err[1])
        self._readers: list[LineReader] = []

    def close_outputs(self) -> None:
        """Lets go of the process's ends: it has its own now, or will never have them."""
        for descriptor in self.outputs:
            os.close(descriptor)

    def discard(self) -> None:
        """The process was not started."""
        for descriptor in self._inputs:
            os.close(descriptor)

    def read(self, label: str, measured: Measured | None = None) -> None:
        """Begins to read what the process writes; the log names it ``label``, ``measured`` gets metrics."""
        levels = ((logging.INFO, "stdout"), (logging.WARNING, "stderr"))
        for descriptor, (level, name) in zip(self._inputs, levels, strict=True):
            reader = LineReader(f"{label}-{name}", level, self.tail, measured)
            reader.attach(descriptor)
            self._readers.append(reader)

    async def finish(self) -> None:
        """Reads what is left of a process that has ended."""
        # Those that left its session may hold the streams open for ever: what they print is not waited for.
        await asyncio.wait([reader.ended for reader in self._readers], timeout=1.0)
        for reader in self._readers:
            reader.close()
