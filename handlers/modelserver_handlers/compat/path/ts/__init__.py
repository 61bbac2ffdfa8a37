"""TorchServe's Python names: doors to what modelserver offers for them (docs/ts-names.md)."""

from __future__ import annotations

from modelserver_handlers.compat import TORCHSERVE_VERSION

__version__ = TORCHSERVE_VERSION

__all__ = ["__version__"]
