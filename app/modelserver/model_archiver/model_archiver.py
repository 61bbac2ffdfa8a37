"""``ModelArchiver``: archives for those who call it from Python."""

from __future__ import annotations

from modelserver.model_archiver.model_archiver_config import ModelArchiverConfig
from modelserver.model_archiver.model_packaging import generate_model_archive

__all__ = ["ModelArchiver", "ModelArchiverConfig"]


class ModelArchiver:
    """Makes archives."""

    @staticmethod
    def generate_model_archive(config: ModelArchiverConfig) -> None:
        """Write the archive. Raises ``ModelArchiverError``, ``FileNotFoundError`` and other ``OSError``."""
        generate_model_archive(config)
