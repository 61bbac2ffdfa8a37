"""TorchServe's Python names, as offered by modelserver (docs/ts-names.md)."""

from __future__ import annotations

from modelserver_handlers.compat import TORCHSERVE_VERSION
from modelserver_handlers.compat.finder import install_finder

__version__ = TORCHSERVE_VERSION

__all__ = ["__version__"]

install_finder()
