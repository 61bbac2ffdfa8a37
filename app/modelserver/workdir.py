"""Directories for files of a process that it removes at its end, or others after it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "modelserver-"


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """A directory of this process; removes those of processes that are gone."""
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{_PREFIX}[0-9]*-*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            with contextlib.suppress(OSError):
                if left.stat().st_uid == os.getuid():
                    shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
