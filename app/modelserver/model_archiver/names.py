"""Makes the modules importable as ``model_archiver`` too, the name that some scripts import."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

MODULES: Final = (
    "arg_parser",
    "manifest_components",
    "manifest_components.manifest",
    "manifest_components.model",
    "model_archiver",
    "model_archiver_config",
    "model_archiver_error",
    "model_packaging",
    "model_packaging_utils",
    "version",
)


def offer(name: str) -> None:
    """Lets the package be imported by ``name``: the very same modules, so that what is patched is patched."""
    package = "modelserver.model_archiver"
    sys.modules[name] = import_module(package)
    for module in MODULES:
        sys.modules[f"{name}.{module}"] = import_module(f"{package}.{module}")
