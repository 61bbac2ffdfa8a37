import ast
import re
from pathlib import Path

import modelserver
from modelserver.ext.core_names import NAMES

_ROOT = Path(modelserver.__file__).parent
_CORE = re.compile(r"modelserver\.(engine|models|surface|run|extension|errors)\b")
MOST = 120


def test_extensions_import_only_names_on_the_list():
    """Never a whole module of the core: that would give them any name of the module."""
    allowed = {f"modelserver.{module}.{name}" for module, names in NAMES.items() for name in names.split()}
    used = {
        name
        for path in (_ROOT / "ext").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        for name in [alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"]
        if _CORE.match(name)
    }

    assert used - allowed == set()
    assert [name for name in allowed if _is_module(name)] == []
    assert len(allowed) <= MOST


def _is_module(name):
    path = _ROOT.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
