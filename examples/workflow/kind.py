"""A model that says which animal a text is about."""

from __future__ import annotations

from typing import Any


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[str] | None:
    if data is None:
        return None
    texts = [text(row["body"]) for row in data]
    return ["dog" if "dog" in each else "cat" if "cat" in each else "none" for each in texts]


def text(body: Any) -> str:
    return body if isinstance(body, str) else bytes(body).decode("utf-8", "replace")
