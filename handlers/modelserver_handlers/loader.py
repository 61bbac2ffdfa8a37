"""Loads the handler that a string names (reference 12.2).

Supported are ``handler.py``, ``handler``, ``handler:function``, ``handler.py:Class`` and the names of
built-in handlers, with or without the prefix ``ts.torch_handler.``. An ASGI application, by default ``app``,
is served as it is. A function is ``handle(data, context)``,
or one of a single annotated argument, which is served as ``predict`` of a ``modelserver.Handler``. A module
of the archive wins over a built-in handler of the same name. An absolute path (``default_service_handler``)
names a file outside the archive.

Import errors within the archive's module are reported unchanged, helper classes beside the handler are
ignored, and ``sys.exit`` while loading is reported as a failure with its location.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from modelserver_handlers import BUILT_IN
from modelserver_handlers.compat.offered import ABSENT
from modelserver_handlers.near_misses import near_misses

_TORCHSERVE_PACKAGE = "ts.torch_handler."
DEFAULT_FUNCTION = "handle"
DEFAULT_APPLICATION = "app"
_DEVICES = ("cpu", "cuda", "xpu", "mps")
# Methods of a handler without a base class.
_CALLED = ("initialize", DEFAULT_FUNCTION)

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

    @property
    def device(self) -> str:
        """Where the handler says in its attribute ``device`` that its model is; empty if it says nothing."""
        device = getattr(self.instance, "device", None)
        kind = getattr(device, "type", device)
        return str(device) if isinstance(kind, str) and kind.partition(":")[0] in _DEVICES else ""

    @property
    def concurrency(self) -> int:
        """How many requests the handler processes at a time, each with a call of its own; 0: batches."""
        return int(getattr(self.instance, "_ms_concurrency", 0))

    def initialize(self, context: Any) -> object:
        """Calls the handler's initialize, or a function once without data; the result may be awaitable.

        Raises HandlerExited for ``sys.exit``, and whatever else it raises.
        """
        with _no_exit("while it was initialised"):
            return self.setup(context)


def read_manifest(model_dir: Path) -> dict[str, Any] | None:
    """The archive's own manifest, without overrides of the registration."""
    path = model_dir / "MAR-INF" / "MANIFEST.json"
    if not path.is_file():
        return None
    manifest: dict[str, Any] = json.loads(path.read_bytes())
    return manifest


def read_config(model_dir: Path, name: str) -> dict[str, Any]:
    """The archive's whole model-config.yaml, for handlers."""
    if not name:
        return {}
    import yaml  # noqa: PLC0415 - a tenth of what workers without such a file would import

    # As the server, which has checked the file: libyaml where it is.
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    config = yaml.load((model_dir / name).read_text("utf-8"), loader)  # noqa: S506 - both are safe
    return config if isinstance(config, dict) else {}


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
    function: Any = getattr(module, attribute or DEFAULT_FUNCTION, None)
    if inspect.isclass(function):
        return _from_class(function)
    application = getattr(module, attribute or DEFAULT_APPLICATION, None)
    if _is_application(application) and (attribute or not _has_handler(module)):
        from modelserver_handlers.asgi import ApplicationModel  # noqa: PLC0415 - few need it

        return _from_instance(ApplicationModel(application), built_in=False)
    if function is None and not attribute:
        function = _only_function(module)
    if _is_annotated(function):
        from modelserver_handlers.typed.handler import FunctionHandler  # noqa: PLC0415 - few need it

        return _from_instance(FunctionHandler(function), built_in=False)
    if callable(function):
        return LoadedHandler(function, lambda context: function(None, context), None, built_in=False)
    return _from_class(_only_class(module))


def _import(name: str, model_dir: Path) -> ModuleType:
    file, is_package = model_dir / f"{name}.py", (model_dir / name).is_dir()
    if file.is_file() or is_package:
        module = importlib.import_module(name)
        place = getattr(module, "__file__", None)
        if not is_package and (place is None or not file.samefile(place)):
            raise HandlerNotUsable(
                f"The handler file {file.name} has the name of a module that workers import first, "
                f"{place or 'built into Python'}: rename it"
            )
        return module
    short = name.removeprefix(_TORCHSERVE_PACKAGE)
    if short in BUILT_IN:
        return importlib.import_module(f"{__package__}.{BUILT_IN[short]}")
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


def _only_function(module: ModuleType) -> Any:
    """The function of a module without handler classes that is served by its annotations, None without one.

    One called ``predict`` is preferred. Raises HandlerNotUsable for several others.
    """
    if any(_looks_like_handler(each) for each in _own(module, inspect.isclass)):
        return None
    functions = {each.__name__: each for each in _own(module, _is_annotated) if each.__name__[0] != "_"}
    if len(functions) > 1 and "predict" not in functions:
        raise HandlerNotUsable(
            f"{module.__name__}.py has several annotated functions ({', '.join(functions)}): name the one to "
            f"serve, as in {module.__name__}.py:{next(iter(functions))}"
        )
    return functions.get("predict") or next(iter(functions.values()), None)


def _is_application(value: Any) -> bool:
    """Whether it is an ASGI application: these name their parameters as the specification does."""
    call = value if inspect.isfunction(value) else getattr(type(value), "__call__", None)  # noqa: B004
    code = getattr(call, "__code__", None)
    return code is not None and code.co_varnames[: code.co_argcount][-3:] == ("scope", "receive", "send")


def _has_handler(module: ModuleType) -> bool:
    """Whether it has a function ``handle``, or a class with one."""
    is_handler = any(hasattr(cls, DEFAULT_FUNCTION) for cls in _own(module, inspect.isclass))
    return is_handler or hasattr(module, DEFAULT_FUNCTION)


def _is_annotated(function: Any) -> bool:
    """Whether it is a function of one annotated argument; ``handle(data, context)`` has two."""
    if not inspect.isfunction(function):
        return False
    parameters = list(inspect.signature(function).parameters.values())
    return (
        bool(parameters)
        and parameters[0].annotation is not inspect.Parameter.empty
        and all(each.default is not each.empty for each in parameters[1:])
        and all(each.name != "context" for each in parameters)
    )


def _own(module: ModuleType, kind: Callable[[Any], bool]) -> list[Any]:
    """What the module itself defines, of a kind."""
    return [each for _, each in inspect.getmembers(module, kind) if each.__module__ == module.__name__]


def _looks_like_handler(cls: type[Any]) -> bool:
    return any(hasattr(cls, name) for name in _CALLED) or bool(near_misses(cls, (*_CALLED, "predict")))


def _only_class(module: ModuleType) -> type[Any]:
    classes = _own(module, inspect.isclass)
    if len(classes) > 1:
        # Helper classes are ignored if only one class has handle.
        handlers = [c for c in classes if hasattr(c, "handle")]
        classes = handlers or classes
    if len(classes) != 1:
        names = [c.__name__ for c in classes]
        expected = (
            f": name the one to serve, as in {module.__name__}.py:{names[0]}"
            if names
            else ": it has neither a class with the method handle (or predict, of a modelserver.Handler) "
            "nor a function handle(data, context), or one with annotations, as in shout(text: str)"
        )
        raise HandlerNotUsable(
            f"Expected only one class in custom service code or a function entry point {names}{expected}"
        )
    only: type[Any] = classes[0]
    return only


def _from_class(cls: type[Any]) -> LoadedHandler:
    with _no_exit("while it was created"):
        instance = cls()
    if not hasattr(instance, "handle"):
        misspelt = "".join(
            f"; {name} looks like {meant}, misspelt" for name, meant in near_misses(cls, _CALLED).items()
        )
        raise HandlerNotUsable(
            f"Expect handle method in class {cls.__name__}: it needs handle(self, data, context), or as a "
            f"modelserver.Handler predict(self, rows){misspelt}"
        )
    return _from_instance(instance, built_in=cls.__module__.partition(".")[0] == __package__)


def _from_instance(instance: Any, *, built_in: bool) -> LoadedHandler:
    def setup(context: Any) -> object:
        initialize = getattr(instance, "initialize", None)
        kind = type(instance)
        for name, meant in near_misses(kind, getattr(kind, "_ms_overridden", _CALLED)).items():
            context._ms_warn(f"{kind.__name__}.{name} is never called: is it {meant}, misspelt?")
        before = getattr(instance, "_ms_before_initialize", None)
        if before is not None:
            before(context)
        return None if initialize is None else initialize(context)

    return LoadedHandler(instance.handle, setup, instance, built_in)


@contextlib.contextmanager
def _no_exit(when: str) -> Iterator[None]:
    try:
        yield
    except SystemExit as end:
        # With the original traceback, for error messages.
        error = HandlerExited(f"The handler called sys.exit({end.code!r}) {when}.")
        raise error.with_traceback(end.__traceback__) from None
