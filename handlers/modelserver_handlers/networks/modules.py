"""Files of an archive."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from modelserver_handlers.errors import ModelLoadError


def require_file(path: Path) -> None:
    """Raises ModelLoadError if there is no such file."""
    if not path.is_file():
        raise ModelLoadError(f"Missing the {path.name} file")


def import_file(path: Path) -> ModuleType:
    """Import one Python file under its own name, as if its folder were on the path; once.

    Another module of the same name (of a model file called ``random.py``) is not replaced. Raises
    what the file raises, and ModelLoadError if there is no such file.
    """
    known = sys.modules.get(path.stem)
    if known is not None and _file_of(known) == path.resolve():
        return known
    name = path.stem if known is None else f"_archive_{path.stem}"
    require_file(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelLoadError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """The classes that ``module`` itself defines, alphabetically; of ``parent_class`` only, if given."""
    classes = [each for _, each in inspect.getmembers(module, inspect.isclass)]
    own = [each for each in classes if each.__module__ == module.__name__]
    return own if parent_class is None else [each for each in own if issubclass(each, parent_class)]
