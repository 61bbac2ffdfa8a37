"""The functions of the workflow: before the models, and after them."""

from __future__ import annotations

import json
from typing import Any


def clean(data: list[dict[str, Any]] | None, context: Any) -> list[str] | None:
    if data is None:  # once, when the worker starts
        return None
    return [text(row.get("body") or row.get("data") or "").lower() for row in data]


def join(data: list[dict[str, Any]] | None, context: Any) -> list[dict[str, Any]] | None:
    if data is None:
        return None
    # Of several nodes before it, it gets the answers by their names.
    return [{"kind": text(row["kind"]), **json.loads(row["mood"])} for row in data]


def text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
