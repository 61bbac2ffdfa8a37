"""``Manifest``: what an archive says about itself."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING

from modelserver import __version__
from modelserver.tools.archiver import creation_time

if TYPE_CHECKING:
    from modelserver.model_archiver.manifest_components.model import Model

__all__ = ["Manifest", "RuntimeType"]


class RuntimeType(Enum):
    """What runs a handler."""

    PYTHON = "python"
    PYTHON3 = "python3"
    LSP = "LSP"


class Manifest:
    """Made now, of a runtime's name or a :class:`RuntimeType`; as text it is the JSON of an archive.

    Raises ValueError for another runtime.
    """

    def __init__(self, runtime: str | RuntimeType, model: Model) -> None:
        self.creation_time = creation_time()
        self.runtime = RuntimeType(runtime)
        self.model = model
        self.archiver_version = __version__
        self.manifest_dict = {
            "createdOn": self.creation_time,
            "runtime": self.runtime.value,
            "model": model.model_dict,
            "archiverVersion": self.archiver_version,
        }

    def __str__(self) -> str:
        return json.dumps(self.manifest_dict, indent=2)

    __repr__ = __str__
