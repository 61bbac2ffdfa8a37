"""Prints the public names of the package ``ts`` that this Python finds, and of its classes: JSON.

Run by the Python of the real TorchServe as ``python surface.py``: it needs nothing but the standard library.
"""

import contextlib
import importlib
import inspect
import io
import json
import pkgutil
import sys
import warnings


def surface() -> dict[str, dict[str, list[str] | None] | None]:
    """Module to its names, those of ``ts`` only; a class has its public members, a function None.

    A module that cannot be imported here is None.
    """
    warnings.simplefilter("ignore")
    import ts

    result: dict[str, dict[str, list[str] | None] | None] = {"ts": {}}
    for module in pkgutil.walk_packages(ts.__path__, "ts.", onerror=lambda name: None):
        if not module.name.endswith("__main__") and not module.ispkg:
            result[module.name] = _names(module.name)
    return result


def _names(name: str) -> dict[str, list[str] | None] | None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            module = importlib.import_module(name)
    except Exception:  # noqa: BLE001 - whatever it needs is not here
        return None
    return {
        key: _members(value) if inspect.isclass(value) else None
        for key, value in sorted(vars(module).items())
        if not key.startswith("_") and getattr(value, "__module__", "").partition(".")[0] == "ts"
    }


def _members(cls: type) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_")]


if __name__ == "__main__":
    sys.argv = sys.argv[:1]  # some modules read it when they are imported
    with contextlib.redirect_stdout(io.StringIO()):
        result = surface()
    json.dump(result, sys.stdout, indent=1, sort_keys=True)
