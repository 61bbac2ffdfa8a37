"""The version of TorchServe whose names these are."""

from __future__ import annotations

from modelserver_handlers.compat import TORCHSERVE_VERSION

__version__ = TORCHSERVE_VERSION

__all__ = ["__version__"]
