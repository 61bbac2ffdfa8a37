"""``Model``: the ``model`` of a manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["Model"]

_KEYS = {
    "model_name": "modelName",
    "serialized_file": "serializedFile",
    "handler": "handler",
    "model_file": "modelFile",
    "model_version": "modelVersion",
    "extensions": "extensions",
    "requirements_file": "requirementsFile",
    "config_file": "configFile",
}


class Model:
    """Its fields as attributes, in ``model_dict`` as in the manifest, and as text the JSON of that."""

    def __init__(  # noqa: PLR0917 - as callers of TorchServe's write it
        self,
        model_name: str,
        serialized_file: str | None,
        handler: str,
        model_file: str | None = None,
        model_version: str | None = None,
        extensions: str | None = None,
        requirements_file: str | None = None,
        config_file: str | None = None,
    ) -> None:
        self.model_name = model_name
        self.serialized_file = serialized_file
        self.handler = handler
        self.model_file = model_file
        self.model_version = model_version
        self.extensions = extensions
        self.requirements_file = requirements_file
        self.config_file = config_file
        self.model_dict = {key: value for name, key in _KEYS.items() if (value := getattr(self, name))}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Model:
        """From what stands in a manifest."""
        fields: dict[str, Any] = {name: written.get(key) for name, key in _KEYS.items()}
        return cls(**fields)

    def __str__(self) -> str:
        return json.dumps(self.model_dict)

    __repr__ = __str__
