"""The functions behind the command and :class:`ModelArchiver`."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from modelserver.model_archiver.arg_parser import ArgParser
from modelserver.model_archiver.model_archiver_config import ModelArchiverConfig, as_archive_config
from modelserver.model_archiver.model_archiver_error import ModelArchiverError
from modelserver.model_archiver.model_packaging_utils import PARTS, ModelExportUtils

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["ModelArchiverConfig", "ModelArchiverError", "generate_model_archive", "package_model"]


def generate_model_archive(config: ModelArchiverConfig | Namespace | None = None) -> None:
    """Write an archive, of what the command line says if no ``config`` is given.

    Raises ``ModelArchiverError``, ``FileNotFoundError`` and other ``OSError``.
    """
    if config is None:
        config = ArgParser.export_model_args_parser()
    package_model(config, manifest=ModelExportUtils.generate_manifest_json(config))


def package_model(config: ModelArchiverConfig | Namespace, manifest: str) -> None:
    """Write an archive with this text as its manifest. Raises as ``generate_model_archive``.

    Step by step, as scripts that replace a step expect it; so the files are copied first, which
    ``modelserver-archive`` does without.
    """
    archive_config = as_archive_config(config)
    if not os.path.exists(archive_config.export_path):
        ModelExportUtils.make_dir(archive_config.export_path)
    ModelExportUtils.validate_inputs(archive_config.model_name, archive_config.export_path)
    folder = ModelExportUtils.check_mar_already_exists(
        archive_config.model_name,
        archive_config.export_path,
        archive_config.force,
        archive_config.archive_format,
    )
    parts = {name: getattr(archive_config, name) for name in PARTS}
    path = ModelExportUtils.copy_artifacts(archive_config.model_name, archive_config.runtime, **parts)
    try:
        ModelExportUtils.archive(
            folder, archive_config.model_name, path, manifest, archive_config.archive_format
        )
    finally:
        shutil.rmtree(path, ignore_errors=True)
