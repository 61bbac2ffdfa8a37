"""Gives back what it gets: arrays as arrays, several inputs as several outputs, other rows as they are.

Of a text that begins with ``json:`` what the rest says; ``raise`` fails.
"""

from __future__ import annotations

import json
from typing import Any

import numpy


def handle(data: Any, context: Any) -> list[Any]:
    """One answer a row; the header x-rows says how many rows shared the call, parameters come back."""
    if data is None:
        return []
    for place in range(len(data)):
        context.set_response_header(place, "x-rows", str(len(data)))
        for name, value in context.get_request_parameters(place).get("parameters", {}).items():
            context.set_response_parameter(place, name, value)
    return [mirrored(row) for row in data]


def mirrored(row: Any) -> Any:
    if len(row) == 1:
        (value,) = row.values()
        if isinstance(value, str) and value == "raise":
            raise ValueError("as asked")
        if isinstance(value, str) and value.startswith("json:"):
            return json.loads(value.removeprefix("json:"))
        return bytes(value) if isinstance(value, bytearray) else value
    return {name: numpy.asarray(value) for name, value in row.items()}
