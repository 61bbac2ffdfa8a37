"""``ModelArchiverError``: what keeps an archive from being made."""

from modelserver.archiver import ArchiverError as ModelArchiverError

__all__ = ["ModelArchiverError"]
