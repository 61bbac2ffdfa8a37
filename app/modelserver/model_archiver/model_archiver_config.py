"""``ModelArchiverConfig``: what goes into an archive, and where the archive goes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from modelserver.model_archiver.manifest_components.manifest import RuntimeType
from modelserver.tools.archiver import ArchiveConfig, StrPath

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["ModelArchiverConfig", "RuntimeType"]


@dataclass
class ModelArchiverConfig(ArchiveConfig):
    """The flags of the command by their names.

    It can be changed, as scripts do that pack several models from one.
    """

    export_path: StrPath = field(default_factory=os.getcwd)


def as_archive_config(config: ModelArchiverConfig | Namespace) -> ArchiveConfig:
    """Converts it for our archiver; handlers and versions may be any object whose text is one."""
    if not isinstance(config, ModelArchiverConfig):
        config = ModelArchiverConfig.from_args(config)
    name, handler, version = str(config.model_name), str(config.handler), str(config.version)
    return replace(config, model_name=name, handler=handler, version=version)
