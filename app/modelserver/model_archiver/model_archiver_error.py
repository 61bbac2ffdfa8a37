"""``ModelArchiverError``: what keeps an archive from being made."""

from modelserver.tools.archiver import ArchiverError as ModelArchiverError

__all__ = ["ModelArchiverError"]
