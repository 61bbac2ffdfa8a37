"""From a handler string to something that can be called (reference 12.2).

``handler.py``, ``handler``, ``handler:function``, ``handler.py:Class`` and the names of built-in handlers are
understood. A module of the archive wins over a built-in handler of the same name.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelserver_handlers import BUILT_IN

if TYPE_CHECKING:
    from types import ModuleType

BUILT_IN_PACKAGE = "modelserver_handlers"
DEFAULT_FUNCTION = "handle"

Entry = Callable[[list[Any], Any], Any]


class HandlerNotUsable(Exception):
    """The handler cannot be called, whatever is tried."""


@dataclass(frozen=True, slots=True)
class LoadedHandler:
    """``entry(data, context)`` answers a batch; ``initialize(context)`` comes first.

    ``instance`` is the handler object, or None for a function. ``built_in``: it is one of ours, unchanged.
    """

    entry: Entry
    initialize: Callable[[Any], object]
    instance: Any
    built_in: bool


def load_handler(handler: str, model_dir: Path) -> LoadedHandler:
    """Imports the handler; ``sys.path`` must hold the model directory.

    Raises:
        HandlerNotUsable: no such module, or nothing in it that can be called.
        Exception: whatever the module raises while it is imported.
    """
    path, _, attribute = handler.partition(":")
    module_name = Path(path).name.removesuffix(".py")
    module = _import(module_name, model_dir)
    function = getattr(module, attribute or DEFAULT_FUNCTION, None)
    if inspect.isclass(function):
        return _from_class(function)
    if callable(function):
        return LoadedHandler(function, lambda context: function(None, context), None, built_in=False)
    return _from_class(_only_class(module))


def _import(name: str, model_dir: Path) -> ModuleType:
    if _is_in(name, model_dir):
        return importlib.import_module(name)
    if name in BUILT_IN:
        return importlib.import_module(f"{BUILT_IN_PACKAGE}.{BUILT_IN[name]}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise HandlerNotUsable(
            f"The handler module {name!r} is neither in the archive nor a built-in handler "
            f"({', '.join(sorted(BUILT_IN))})."
        ) from error


def _is_in(name: str, model_dir: Path) -> bool:
    return (model_dir / f"{name}.py").is_file() or (model_dir / name).is_dir()


def _only_class(module: ModuleType) -> type[Any]:
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    if len(classes) > 1:
        # Helper classes beside the handler are harmless as long as one alone can handle.
        handlers = [c for c in classes if hasattr(c, "handle")]
        classes = handlers or classes
    if len(classes) != 1:
        names = [c.__name__ for c in classes]
        raise HandlerNotUsable(
            f"Expected only one class in custom service code or a function entry point {names}"
        )
    return classes[0]


def _from_class(cls: type[Any]) -> LoadedHandler:
    instance = cls()
    if not hasattr(instance, "handle"):
        raise HandlerNotUsable(f"Expect handle method in class {cls.__name__}")
    initialize = getattr(instance, "initialize", None) or (lambda context: None)
    built_in = cls.__module__.partition(".")[0] == BUILT_IN_PACKAGE
    return LoadedHandler(instance.handle, initialize, instance, built_in)
