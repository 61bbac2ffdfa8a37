"""Finds the heavy packages that a model will import, by reading its sources without running them.

Parsing may hold the interpreter for seconds, or exhaust the memory for malicious files, so the server runs
this file in a separate process (:mod:`modelserver.ext.forking.preload_reader`). It only imports the standard
library.
"""

from __future__ import annotations

import ast
import json
import re
import resource
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

# Variables that libraries or the interpreter read only once, when they load.
EARLY_VARIABLE = re.compile(
    "(LD|OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|DNNL|ONEDNN|TORCH|TORCHINDUCTOR|PYTORCH|ATEN|MALLOC|GLIBC|THP|LC)_.*"
    "|PYTHON.*|LANG|LANGUAGE|TZ"
)
_EARLY_TEXT = re.compile(r"""["'](LD|OMP|KMP|GOMP|MKL|OPENBLAS|DNNL|ONEDNN|TORCH|PYTORCH|ATEN)_[A-Z_]+["']""")
HEAVY = frozenset({"torch", "torchvision"})
_OURS = "modelserver_handlers"
_OURS_LIGHT = frozenset(
    {
        "",
        "compat",
        "context",
        "envelopes",
        "errors",
        "labels",
        "metrics",
        "micro_batching",
        "streaming",
        "tensor_rows",
        "timer",
        "words",
    }
)
# TorchServe's names for modules that need torch, which map to ours.
_TORCHSERVE = "ts.torch_handler"
_MAX_SOURCE = 1 << 20
# Limits of the parsing process: bytes of address space, seconds of CPU time.
_MEMORY = 1 << 30
_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Preload:
    """The ``modules`` that the model's files import, and the name of a ``handler`` outside them."""

    modules: tuple[str, ...] = ()
    handler: str = ""


def preload_of(model_dir: Path, handler: str, heavy: Collection[str] = HEAVY) -> Preload | None:
    """What to import before the worker is forked; None if nothing, or if that is not allowed.

    It is not allowed if a file mentions a variable that must be set before torch is imported.
    """
    name = Path(handler.partition(":")[0]).name.removesuffix(".py")
    try:
        sources = list(_sources(model_dir))
        brought = (model_dir / f"{name}.py").is_file() or (model_dir / name).is_dir()
    except OSError:
        return None
    if any(_EARLY_TEXT.search(text) for text in sources):
        return None
    modules = sorted({module for text in sources for module in heavy_imports(text, heavy)})
    return Preload(tuple(modules), "" if brought else name) if modules or not brought else None


def heavy_imports(source: str, heavy: Collection[str] = HEAVY) -> set[str]:
    """The packages worth preloading that a source imports at top level, not in a function or condition."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The worker will report it.
        return set()
    modules = set()
    for node in body:
        for name in _imported(node):
            root, _, rest = name.partition(".")
            if root in heavy:
                modules.add(root)
            elif root == _OURS and rest.partition(".")[0] not in _OURS_LIGHT:
                modules.add(f"{_OURS}.{rest.partition('.')[0]}")
            elif name == _TORCHSERVE or name.startswith(f"{_TORCHSERVE}."):
                modules.add(f"{_OURS}.base")
    return modules


def _imported(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (
            (f"{node.module}.{alias.name}" for alias in node.names) if node.module == _OURS else [node.module]
        )


def _sources(model_dir: Path) -> Iterator[str]:
    for path in sorted(model_dir.glob("*.py")):
        if path.stat().st_size <= _MAX_SOURCE:
            yield path.read_text("utf-8", "replace")


def main() -> None:
    """Prints the preload as JSON; arguments: model directory, handler, heavy packages separated by commas."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    model_dir, handler, heavy = sys.argv[1:]
    preload = preload_of(Path(model_dir), handler, heavy.split(","))
    print(json.dumps(None if preload is None else asdict(preload)))


if __name__ == "__main__":
    main()
