"""English contractions written out."""

from __future__ import annotations

from modelserver_handlers.contractions import CONTRACTION_MAP

__all__ = ["CONTRACTION_MAP"]
