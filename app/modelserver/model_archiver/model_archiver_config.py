"""``ModelArchiverConfig``: what goes into an archive, and where the archive goes."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING

from modelserver.archiver import ArchiveConfig, StrPath
from modelserver.model_archiver.manifest_components.manifest import RuntimeType

if TYPE_CHECKING:
    from argparse import Namespace
    from dataclasses import Field

__all__ = ["ModelArchiverConfig", "RuntimeType"]


@dataclass
class ModelArchiverConfig:
    """The flags of the command by their names; ``ArchiveConfig`` of ``modelserver.archiver`` explains them.

    It can be changed, as scripts do that pack several models from one.
    """

    model_name: str
    handler: str
    version: str
    serialized_file: StrPath | None = None
    model_file: StrPath | None = None
    extra_files: str | None = None
    runtime: str = RuntimeType.PYTHON.value
    export_path: StrPath = field(default_factory=os.getcwd)
    archive_format: str = "default"
    force: bool = False
    requirements_file: StrPath | None = None
    config_file: StrPath | None = None

    @classmethod
    def from_args(cls, args: Namespace) -> ModelArchiverConfig:
        """From parsed flags, or any object with such attributes; what is more does not count.

        What is missing has its default. Raises AttributeError for a missing name, handler or version.
        """
        return cls(**{each.name: getattr(args, each.name) for each in fields(cls) if _is_given(args, each)})


def _is_given(args: Namespace, each: Field[object]) -> bool:
    is_optional = each.default is not MISSING or each.default_factory is not MISSING
    return hasattr(args, each.name) or not is_optional


def as_archive_config(config: ModelArchiverConfig | Namespace) -> ArchiveConfig:
    """The same for our archiver; names of handlers and versions may be any object that is one as text."""
    if not isinstance(config, ModelArchiverConfig):
        config = ModelArchiverConfig.from_args(config)
    values = {each.name: getattr(config, each.name) for each in fields(ModelArchiverConfig)}
    texts = {name: str(values[name]) for name in ("model_name", "handler", "version")}
    return ArchiveConfig(**{**values, **texts})
