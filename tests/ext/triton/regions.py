"""Shared memory in a folder that takes the place of the machine's."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.ext.triton.regions import Regions

MOST = 1 << 24
NUMBERS = struct.pack("<4f", 1, 2, 3, 4)


def services_with(prefix: str | None) -> Any:
    """What a server has for regions, with this ``shared_memory_prefix``."""
    shared = SharedMemory(allowed=prefix is not None, most=MOST)
    return SimpleNamespace(shared=shared, settings=SimpleNamespace(shared_memory_prefix=prefix))


def registered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Regions:
    """Memory `/t_x` of 32 bytes may be registered, and is, as `x`, from byte 8 on."""
    monkeypatch.setattr("modelserver.ext.triton.regions.SHARED_MEMORY", folder)
    (folder / "t_x").write_bytes(bytes(8) + NUMBERS + bytes(8))
    made = Regions(services_with("/t_"))
    made.register("x", "/t_x", 8, 24)
    return made
