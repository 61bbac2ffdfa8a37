import ast
from pathlib import Path

import modelserver
from modelserver.ext.core_names import NAMES

_CORE = ("engine", "models", "surface", "run", "extension", "errors")
MOST = 120


def test_extensions_import_only_names_on_the_list():
    allowed = {(module, name) for module, names in NAMES.items() for name in names.split()}
    used = {
        (node.module.removeprefix("modelserver."), alias.name)
        for path in (Path(modelserver.__file__).parent / "ext").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        if node.module.startswith("modelserver.") and node.module.split(".")[1] in _CORE
        for alias in node.names
    }

    assert used - allowed == set()
    assert len(allowed) <= MOST


def test_no_extension_imports_whole_modules_of_the_core():
    """A whole module would give it any name of the module."""
    rooms = tuple(f"modelserver.{room}" for room in _CORE)
    whole = [
        name
        for path in (Path(modelserver.__file__).parent / "ext").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        for name in [alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"]
        if name in rooms or (isinstance(node, ast.Import) and name.startswith(rooms))
    ]

    assert whole == []
