"""Which heavy packages a model will import, seen from outside: sources are read, never run.

Parsing holds the interpreter for seconds where a file is large, and may take all memory where one was made
for that: the server has it done by a process of its own, which runs this file (see
:mod:`modelserver.pools.preload_reader`). So nothing is imported here but the standard library.
"""

from __future__ import annotations

import ast
import json
import re
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# Variables that libraries read once, when they load, or the interpreter when it starts.
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
# TorchServe's names of what needs torch, which lead to ours.
_TORCHSERVE = "ts.torch_handler"
_MAX_SOURCE = 1 << 20
# What the process that parses may use: bytes of address space, and seconds of a processor.
_MEMORY = 1 << 30
_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Preload:
    """``modules`` that the model's own files import, and the name of a ``handler`` that they do not bring."""

    modules: tuple[str, ...] = ()
    handler: str = ""


def preload_of(model_dir: Path, handler: str, heavy: Collection[str] = HEAVY) -> Preload | None:
    """What pays to be imported before the worker is forked; None if nothing does, or it may not be.

    It may not where a file sets, or merely names, a variable that counts before torch is imported.
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
    """The packages worth a preload that a source imports at once, not within a function or a condition."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The worker will say so.
        return set()
    found = set()
    for node in body:
        for name in _imported(node):
            root, _, rest = name.partition(".")
            if root in heavy:
                found.add(root)
            elif root == _OURS and rest.partition(".")[0] not in _OURS_LIGHT:
                found.add(f"{_OURS}.{rest.partition('.')[0]}")
            elif name == _TORCHSERVE or name.startswith(f"{_TORCHSERVE}."):
                found.add(f"{_OURS}.base")
    return found


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
    """Prints the preload of the model directory and handler that are named by the arguments, as JSON.

    The third argument are the heavy packages, separated by commas.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    model_dir, handler, heavy = sys.argv[1:]
    preload = preload_of(Path(model_dir), handler, heavy.split(","))
    print(json.dumps(None if preload is None else asdict(preload)))


if __name__ == "__main__":
    main()
