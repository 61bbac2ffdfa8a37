"""TorchServe's Python names (``ts.torch_handler.base_handler`` and the like) for handlers written for it.

The package ``ts`` is alone in its folder (``path``), so that nothing else is found there. Workers put
that folder on their ``sys.path`` directly after the archive's: an archive's own ``ts`` wins, but this one
wins over an installed TorchServe, wherever that is. A handler runs in our worker with our context, and the
parts of TorchServe that talk to its server (answers in parts, metrics) cannot talk to this one. TorchServe
does the same: its own ``ts`` is always loaded before a handler. Tests of handlers outside of workers
import :mod:`.activate`.
"""

from __future__ import annotations

import sys
from pathlib import Path

TORCHSERVE_VERSION = "0.12.0"
"""The version of TorchServe that the names are from; ``ts.__version__``."""

PATH = str(Path(__file__).parent / "path")
"""The folder that holds ``ts`` and nothing else."""


def offer_ts_names(position: int = 0) -> None:
    """Let ``import ts`` find the names here, unless an entry of ``sys.path`` before ``position`` has them."""
    if PATH not in sys.path:
        sys.path.insert(position, PATH)
