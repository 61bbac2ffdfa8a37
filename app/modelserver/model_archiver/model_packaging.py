"""The functions behind the command and :class:`ModelArchiver`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.archiver import build_archive
from modelserver.model_archiver.arg_parser import ArgParser
from modelserver.model_archiver.model_archiver_config import as_archive_config

if TYPE_CHECKING:
    from argparse import Namespace

    from modelserver.model_archiver.model_archiver_config import ModelArchiverConfig

__all__ = ["generate_model_archive", "package_model"]


def generate_model_archive(config: ModelArchiverConfig | Namespace | None = None) -> None:
    """Write an archive, of what the command line says if no ``config`` is given.

    Raises ``ModelArchiverError``, ``FileNotFoundError`` and other ``OSError``.
    """
    if config is None:
        config = ArgParser.export_model_args_parser()
    build_archive(as_archive_config(config))


def package_model(config: ModelArchiverConfig | Namespace, manifest: str) -> None:
    """Write an archive with this text as its manifest. Raises as ``generate_model_archive``."""
    build_archive(as_archive_config(config), manifest=manifest)
