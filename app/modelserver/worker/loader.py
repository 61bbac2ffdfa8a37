"""Loads the handler that a string names (reference 12.2).

Supported are ``handler.py``, ``handler``, ``handler:function``, ``handler.py:Class`` and the names of
built-in handlers, with or without the prefix ``ts.torch_handler.``. A module of the archive wins over a
built-in handler of the same name. An absolute path (``default_service_handler``) names a file outside the
archive.

Import errors within the archive's module are reported unchanged, helper classes beside the handler are
ignored, and ``sys.exit`` while loading is reported as a failure with its location.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelserver_handlers import BUILT_IN
from modelserver_handlers.compat.absent import ABSENT

if TYPE_CHECKING:
    from types import ModuleType

BUILT_IN_PACKAGE = "modelserver_handlers"
_TORCHSERVE_PACKAGE = "ts.torch_handler."
DEFAULT_FUNCTION = "handle"

Entry = Callable[[list[Any], Any], Any]


class HandlerNotUsable(Exception):
    """The handler cannot be used; retrying cannot help."""


class HandlerExited(Exception):
    """The handler called ``sys.exit`` before it was ready; a retry may succeed."""


@dataclass(frozen=True, slots=True)
class LoadedHandler:
    """First call ``initialize(context)``, then ``entry(data, context)`` for each batch.

    ``instance`` is the handler object, or None for a function. ``built_in``: it is one of ours, unchanged.
    """

    entry: Entry
    setup: Callable[[Any], object]
    instance: Any
    built_in: bool

    def initialize(self, context: Any) -> object:
        """Calls the handler's initialize, or a function once without data; the result may be awaitable.

        Raises HandlerExited for ``sys.exit``, and whatever else it raises.
        """
        with _no_exit("while it was initialised"):
            return self.setup(context)


def load_handler(handler: str, model_dir: Path) -> LoadedHandler:
    """Imports the handler; ``sys.path`` must hold the model directory.

    Raises:
        HandlerNotUsable: no such module, or nothing in it that can be called.
        HandlerExited: it called ``sys.exit``.
        Exception: whatever the module raises while it is imported.
    """
    path, _, attribute = handler.partition(":")
    module_name = Path(path).name.removesuffix(".py")
    with _no_exit("while it was imported"):
        module = _from_file(Path(path)) if Path(path).is_absolute() else _import(module_name, model_dir)
    function = getattr(module, attribute or DEFAULT_FUNCTION, None)
    if inspect.isclass(function):
        return _from_class(function)
    if callable(function):
        return LoadedHandler(function, lambda context: function(None, context), None, built_in=False)
    return _from_class(_only_class(module))


def _import(name: str, model_dir: Path) -> ModuleType:
    if (model_dir / f"{name}.py").is_file() or (model_dir / name).is_dir():
        return importlib.import_module(name)
    short = name.removeprefix(_TORCHSERVE_PACKAGE)
    if short in BUILT_IN:
        return importlib.import_module(f"{BUILT_IN_PACKAGE}.{BUILT_IN[short]}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        reason = ABSENT.get(_TORCHSERVE_PACKAGE + short)
        raise HandlerNotUsable(
            f"The handler module {name!r} is neither in the archive nor a built-in handler "
            f"({', '.join(sorted(BUILT_IN))})." + (f" Instead of TorchServe's: {reason}." if reason else "")
        ) from error


def _from_file(path: Path) -> ModuleType:
    """The module in an operator's file outside the archive, which can import its neighbours."""
    if path.suffix != ".py":
        path = path.with_name(f"{path.name}.py")
    sys.path.insert(1, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise HandlerNotUsable(f"The handler file {path} does not exist.")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _only_class(module: ModuleType) -> type[Any]:
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    if len(classes) > 1:
        # Helper classes are ignored if only one class has handle.
        handlers = [c for c in classes if hasattr(c, "handle")]
        classes = handlers or classes
    if len(classes) != 1:
        names = [c.__name__ for c in classes]
        wanted = (
            f": name the one to serve, as in {module.__name__}.py:{names[0]}"
            if names
            else ": it has neither a class with the method handle (or predict, of a modelserver.Handler) "
            "nor a function handle(data, context)"
        )
        raise HandlerNotUsable(
            f"Expected only one class in custom service code or a function entry point {names}{wanted}"
        )
    return classes[0]


def _from_class(cls: type[Any]) -> LoadedHandler:
    with _no_exit("while it was created"):
        instance = cls()
    if not hasattr(instance, "handle"):
        raise HandlerNotUsable(
            f"Expect handle method in class {cls.__name__}: it needs handle(self, data, context), or as a "
            "modelserver.Handler predict(self, rows)"
        )
    initialize = getattr(instance, "initialize", None) or (lambda context: None)
    built_in = cls.__module__.partition(".")[0] == BUILT_IN_PACKAGE
    return LoadedHandler(instance.handle, initialize, instance, built_in)


@contextlib.contextmanager
def _no_exit(when: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as end:
        # With the original traceback, for error messages.
        error = HandlerExited(f"The handler called sys.exit({end.code!r}) {when}.")
        raise error.with_traceback(end.__traceback__) from None
