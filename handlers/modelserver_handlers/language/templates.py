"""Failures of chat templates."""

from __future__ import annotations

import traceback


def explain_template(error: Exception) -> str:
    """Why a template has failed, with its line."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename in ("<template>", "<unknown>")]
    number = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    where = f", line {number}" if number else ""
    return f"The chat template{where}: {error}"
