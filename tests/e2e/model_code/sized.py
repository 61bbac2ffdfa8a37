"""Returns the size of a picture, which arrives as bytes or as base64 text."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image


def handle(data: Any, context: Any) -> list[dict[str, int]]:
    return [size(row) for row in data or ()]


def size(row: dict[str, Any]) -> dict[str, int]:
    content = row.get("data") or row.get("body")
    picture = Image.open(io.BytesIO(base64.b64decode(content) if isinstance(content, str) else content))
    return {"width": picture.width, "height": picture.height}
