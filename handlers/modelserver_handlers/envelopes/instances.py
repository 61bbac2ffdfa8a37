"""``json``, ``kserve`` and ``body``: instances or whole bodies for the handler (reference 14.6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from modelserver_handlers.envelopes.base import BaseEnvelope, is_explaining, listed
from modelserver_handlers.texts import from_base64


class JSONEnvelope(BaseEnvelope):
    """The elements of ``instances``; ``{"b64": "..."}`` is decoded, also as a column of an instance.

    Unlike in TorchServe, bodies of any content type are read as JSON, and instances in base64 may be mixed
    with others.
    """

    def unfold(self, request: Any) -> list[Any]:
        """The instances, decoded. Raises BadInput without a list of them, and for invalid base64."""
        return [_decoded(instance) for instance in listed(request, "instances")]

    def unfold_instance(self, value: Any) -> Any:
        """Decoded like the others. Raises BadInput for invalid base64."""
        return _decoded(value)

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """A JSON text, as in TorchServe: ``/predictions`` sends it unchanged."""
        return json.dumps({"predictions": answers}, default=_as_lists)


class KserveEnvelope(BaseEnvelope):
    """The elements of ``instances`` unchanged; ``{"predictions": [...]}`` or ``explanations`` out."""

    def unfold(self, request: Any) -> list[Any]:
        """The instances. Raises BadInput without a list of them."""
        return listed(request, "instances")

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """KServe's V1 answer."""
        return {"explanations" if is_explaining(self.context) else "predictions": answers}


class BodyEnvelope(BaseEnvelope):
    """One value per request: its part ``data`` or its body, as it was decoded."""

    def unfold(self, request: Any) -> list[Any]:
        """The part ``data`` if it is not empty, else the body."""
        if not isinstance(request, Mapping):
            return [request]
        return [request.get("data") or request.get("body")]

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """The answer itself."""
        return answers[0]


def _as_lists(value: Any) -> Any:
    """Tensors and arrays, which JSON cannot represent."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def _decoded(instance: Any) -> Any:
    if not isinstance(instance, Mapping):
        return instance
    if _is_encoded(instance):
        return from_base64(instance["b64"])
    return {
        column: from_base64(value["b64"]) if _is_encoded(value) else value
        for column, value in instance.items()
    }


def _is_encoded(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"b64"} and isinstance(value["b64"], str)
