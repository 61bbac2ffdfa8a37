"""What clients have registered of this machine's shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from modelserver.errors import BadRequest, ResourceNotFound
from modelserver.surface.api.services import Services

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - clients' memory
_MOST_REGIONS: Final = 4096
_LONGEST: Final = 255


class Regions:
    """Registers parts of shared memory by name, for the tensors of later requests.

    Keys begin with ``shared_memory_prefix``, such as `/tensors_`; None for none, `/` for all. ``shared`` has
    what is registered.
    """

    def __init__(self, services: Services) -> None:
        self.shared = services.shared
        self._services = services

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Adds a region: ``size`` bytes from ``offset`` on of the shared memory that POSIX calls ``key``.

        Raises BadRequest if the name is taken, the key outside of the prefix, or the memory is not there, not
        accessible, or shorter.
        """
        memory = self.shared.memory
        memory.check_allowed()
        if not 0 < len(name) <= _LONGEST:
            raise BadRequest(f"the name of shared memory has 1 to {_LONGEST} characters")
        where = f"shared memory '{name}'"
        if name in memory.regions:
            raise BadRequest(f"{where} is already registered")
        if len(memory.regions) >= _MOST_REGIONS:
            raise BadRequest(f"{where}: {_MOST_REGIONS} regions are registered, unregister some")
        path = self._path(key, where)
        if offset < 0 or size <= 0:
            raise BadRequest(f"{where}: an offset of at least 0 and a size of at least 1 byte are needed")
        self.shared.memory = memory.adding(name, key, path, offset, size)

    def _path(self, key: str, where: str) -> str:
        file = key.removeprefix("/")
        invalid = "/" in file or "\0" in file or file in ("", ".", "..")
        if invalid or len(file.encode(errors="replace")) > _LONGEST:
            raise BadRequest(f"{where}: the key '{key[:_LONGEST]}' is not the name of shared memory")
        prefix = self._services.settings.shared_memory_prefix or ""
        if not f"/{file}".startswith(f"/{prefix.removeprefix('/')}"):
            raise BadRequest(f"{where}: the key '{key}' does not begin with '{prefix}'")
        return str(SHARED_MEMORY / file)

    def unregister(self, name: str = "") -> None:
        """Forgets a region, or without a name all; nothing happens if there is none of that name.

        Requests that were read before still write their outputs.
        """
        memory = self.shared.memory
        left = {each: region for each, region in memory.regions.items() if name and each != name}
        self.shared.memory = msgspec.structs.replace(memory, regions=left)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """The region of this name, or all. Raises ResourceNotFound."""
        regions = self.shared.memory.regions
        if name and name not in regions:
            raise ResourceNotFound(f"No shared memory is registered as '{name[:_LONGEST]}'.")
        return [
            {"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.size}
            for each in ([regions[name]] if name else regions.values())
        ]
