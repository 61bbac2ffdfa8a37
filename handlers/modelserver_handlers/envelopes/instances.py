"""``json``: lists of instances in, ``{"predictions": [...]}`` out as text (reference 14.6)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from modelserver_handlers.envelopes.base import BaseEnvelope, Malformed, listed


class JSONEnvelope(BaseEnvelope):
    """The elements of ``instances``; ``{"b64": "..."}`` is decoded, also as a column of an instance.

    Better than TorchServe: bodies of any content type are read as JSON, and each instance in base64 is
    decoded, not only lists of nothing else.
    """

    def unfold(self, request: Any) -> list[Any]:
        """The instances, decoded. Raises Malformed for no list of them, or for text that is no base64."""
        return [_decoded(instance) for instance in listed(request, "instances")]

    def unfold_instance(self, value: Any) -> Any:
        """Decoded like the others. Raises Malformed for text that is no base64."""
        return _decoded(value)

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """A JSON text, as TorchServe's: a handler of ``/predictions`` sends it as it is."""
        return json.dumps({"predictions": answers}, default=_as_lists)


def _as_lists(value: Any) -> Any:
    """Tensors and arrays, for which JSON has no form of its own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def _decoded(instance: Any) -> Any:
    if not isinstance(instance, Mapping):
        return instance
    if _is_encoded(instance):
        return _from_base64(instance["b64"])
    return {
        column: _from_base64(value["b64"]) if _is_encoded(value) else value
        for column, value in instance.items()
    }


def _is_encoded(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("the text under b64 is no base64") from None
