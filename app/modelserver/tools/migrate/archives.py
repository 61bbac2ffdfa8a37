"""What an archive's own Python says of it: names of ``ts`` that it imports, bodies that it reads itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modelserver.tools.build.lock import parsed
from modelserver.tools.migrate.calls import MigrationError
from modelserver.tools.tune.errors import TuningError
from modelserver.tools.tune.source import open_source

BODIES = frozenset({"instances", "inputs"})
"""What handlers that read whole bodies of V1 and V2 look for."""


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that was read.

    ``ts_names`` are the imported names with the places of their first import, ``places`` the :data:`BODIES`
    that it reads with theirs (``handler.py, line 7``); ``config_text`` its ``model-config.yaml``, if any.
    """

    url: str
    handler: str
    ts_names: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    config_text: str | None = None


def read_archive(url: str, store: Path, workdir: Path) -> Archive:
    """The archive ``url`` of the model store, unpacked into ``workdir``. Raises MigrationError."""
    try:
        source = open_source(url, store, workdir)
    except (TuningError, OSError) as error:
        raise MigrationError(f"{url}: {error}") from error
    folder = source.store / source.url
    names: dict[str, str] = {}
    places: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        where = path.relative_to(folder).as_posix()
        for name, line in ts_imports(tree := parsed(path)):
            names.setdefault(name, f"{where}, line {line}")
        for name, line in body_keys(tree):
            places.setdefault(name, f"{where}, line {line}")
    return Archive(url, source.manifest.handler or "", names, places, source.config_text)


def ts_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names as ``ts.module.Name``, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}".removesuffix(".*") for alias in node.names]
        else:
            continue
        yield from ((name, node.lineno) for name in names if name == "ts" or name.startswith("ts."))


def body_keys(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Where ``x["instances"]`` or ``x.get("instances")`` is read, likewise ``inputs``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key: ast.expr | None = node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            key = node.args[0] if node.args else None
        else:
            continue
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value in BODIES:
            yield key.value, node.lineno
