"""A model that says how much its author likes it, from 0 to 1."""

from __future__ import annotations

from typing import Any

LIKED = {"lovely", "beautiful", "good", "like", "love"}


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[dict[str, float]] | None:
    if data is None:
        return None
    words = [text(row["body"]).split() for row in data]
    return [{"liking": round(len(LIKED & set(each)) / max(1, len(each)), 2)} for each in words]


def text(body: Any) -> str:
    return body if isinstance(body, str) else bytes(body).decode("utf-8", "replace")
