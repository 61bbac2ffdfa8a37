"""Runs a worker under a Python in which modelserver is not installed: ``elsewhere.py MODULE HANDLERS …``.

This file is run by path with the operator's Python, so its syntax must be valid in old versions. It imports
the two packages from the server's installation, but nothing else from there. ``MODULE`` may be ``check``,
which exits with a message if a worker cannot run.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from importlib.machinery import ModuleSpec  # noqa: TC003 - of all versions
from typing import Any

OLDEST = (3, 10)
NEEDED = {"msgspec": "msgspec", "orjson": "orjson", "python_multipart": "python-multipart", "yaml": "PyYAML"}


class Packages:
    """Finds the server's packages before others of the same names, as both sides must have the same version.

    ``folders`` maps their names to folders.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Finds a module for Python's import."""
        folder = self._folders.get(name)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )


def complaint() -> str:
    """Why a worker cannot run under this Python, or an empty string."""
    if sys.version_info < OLDEST:
        return "it is Python {}.{}, workers need 3.10 or newer".format(*sys.version_info[:2])
    missing = [NEEDED[name] for name in sorted(NEEDED) if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return "workers need {0} there: {1} -m pip install {0}".format(" ".join(missing), sys.executable)


def main() -> None:
    """Runs the module that the arguments name."""
    module, handlers, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    here = os.path.dirname(os.path.abspath(__file__))
    # Its modules are not top-level ones.
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    fault = complaint()
    if fault or module == "check":
        sys.exit(fault or None)
    packages: Any = Packages(
        {"modelserver": os.path.dirname(os.path.dirname(here)), "modelserver_handlers": handlers}
    )
    sys.meta_path.insert(0, packages)
    sys.argv[1:] = rest
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
