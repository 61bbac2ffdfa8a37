"""The modules of ``ts``, created from the table of offered names when imported.

Only ``ts`` itself is a file: so its place on ``sys.path`` decides precedence, and processes that inherit that
path find it too. It installs :class:`NamesFinder`, which Python then asks for modules in its folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.abc import Loader, PathEntryFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from modelserver_handlers.compat import PATH
from modelserver_handlers.compat.offered import ABSENT, LAZY, OFFERED, REEXPORTED

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_FOLDER = Path(PATH, "ts")
_HOMES = {name: place for names in OFFERED.values() for name, place in names.items()} | {
    "MetricUnit": "metrics.cache.METRIC_UNIT"
}
_MODULES = OFFERED.keys() | ABSENT.keys()
_PACKAGES = {
    ".".join(parts[:count])
    for parts in (name.split(".") for name in _MODULES)
    for count in range(2, len(parts))
}


def install_finder() -> None:
    """Make the modules of ``ts`` importable."""
    if NamesFinder not in sys.path_hooks:
        sys.path_hooks.insert(0, NamesFinder)
        sys.path_importer_cache.pop(str(_FOLDER), None)


class NamesFinder(PathEntryFinder):
    """Finds the modules of one package of ``ts``; raises ImportError for other folders."""

    def __init__(self, folder: str) -> None:
        if not Path(folder).is_relative_to(_FOLDER):
            raise ImportError(f"{folder} is not a package of TorchServe's names", path=folder)
        self._package = ".".join(Path(folder).relative_to(PATH).parts)

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module, offered or refused; its file is this one."""
        if fullname not in self._names():
            return None
        inner = [str(Path(PATH, *fullname.split(".")))] if fullname in _PACKAGES else None
        return spec_from_file_location(
            fullname, __file__, loader=_NamesLoader(), submodule_search_locations=inner
        )

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Name and whether it is a package, as ``pkgutil`` asks for them."""
        for name in sorted(self._names()):
            yield prefix + name.rpartition(".")[2], name in _PACKAGES

    def _names(self) -> set[str]:
        return {name for name in _MODULES | _PACKAGES if name.rpartition(".")[0] == self._package}


class _NamesLoader(Loader):
    """Provides names, or refuses."""

    def exec_module(self, module: ModuleType) -> None:
        """Raises ImportError that says why a module is not offered."""
        name = module.__name__
        if name in ABSENT:
            raise ImportError(f"modelserver does not offer {name}: {ABSENT[name]}.", name=name)
        offered = OFFERED.get(name, {})
        lazy = {short: place for short, place in offered.items() if f"{name}.{short}" in LAZY}
        reexported = {short: _HOMES[short] for short in REEXPORTED.get(name, "").split()}
        for short, place in (offered | reexported).items():
            if short not in lazy:
                setattr(module, short, _resolve(place))
        if offered:
            vars(module)["__all__"] = sorted(offered)
        if lazy:
            vars(module)["__getattr__"] = _getter(name, lazy)

    def get_code(self, name: str) -> CodeType | None:
        """What ``python -m`` runs: its ``main``."""
        if "main" not in OFFERED.get(name, {}):
            return None
        return compile(f"from {name} import main\nmain()", __file__, "exec")


def _resolve(place: str) -> Any:
    home, _, name = place.rpartition(".")
    return getattr(import_module(f"modelserver_handlers.{home}"), name)


def _getter(module: str, lazy: Mapping[str, str]) -> Callable[[str], Any]:
    def get(name: str) -> Any:
        if name in lazy:
            return _resolve(lazy[name])
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get
