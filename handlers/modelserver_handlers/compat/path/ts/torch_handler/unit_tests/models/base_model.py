"""The smallest network."""

from __future__ import annotations

from modelserver_handlers.compat.base_model import ArgmaxModel, save_pt_file

__all__ = ["ArgmaxModel", "save_pt_file"]
