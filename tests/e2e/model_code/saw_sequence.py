"""Returns the sequence of a row, by the context."""

from __future__ import annotations

from typing import Any


def handle(data: Any, context: Any) -> list[dict[str, Any]]:
    """One answer a row."""
    return [
        {
            "sequence": context.get_sequence_id(place),
            "start": context.get_request_header(place, context.header_key_sequence_start),
            "parameters": context.get_request_parameters(place),
        }
        for place in range(len(data or ()))
    ]
