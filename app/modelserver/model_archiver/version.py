"""The archiver's version; also as text in ``version.txt`` beside this file, where tools look for it."""

from modelserver import __version__

__all__ = ["__version__"]
