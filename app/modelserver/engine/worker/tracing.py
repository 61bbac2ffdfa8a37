"""Spans that a handler opens, in a worker whose server exports them.

What does so is a module of an extension, which the server names with the model: its ``exporting`` has the
methods ``open`` and ``close``, and it has the functions ``enter`` and ``leave``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# None, or that module.
_modules: list[Any] = []


def open_exporting(module: str) -> None:
    """The module of this name exports the spans of this process, whose handler has been imported."""
    if not _modules:
        _modules.append(import_module(module))
    _modules[0].exporting.open()


def close_exporting() -> None:
    """Exports the rest, for two seconds at most."""
    for module in _modules:
        module.exporting.close()


def enter(trace: str, *others: str) -> Any:
    """Makes the handler's span the current one; returns what :func:`leave` needs.

    Spans directly below it are linked to those of ``others``, whose requests share the call.
    """
    return _modules[0].enter(trace, *others) if _modules else None


def leave(token: Any) -> None:
    """Ends what :func:`enter` began."""
    if token is not None:
        _modules[0].leave(token)
