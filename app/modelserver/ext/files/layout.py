"""Makes an archive's folder of a handler's script or a model file.

A script is copied, with the sources beside it, so that a later change of the file does not reach workers that
are started again; what else is in its folder is linked, as handlers read files beside their own.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from modelserver.errors import InvalidModel
from modelserver.ext.files.model_kinds import ModelKind, Seen, advice, look
from modelserver.models.archives.manifest import MANIFEST_PATH
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.archives.store import SUFFIXES

_HANDLERS: Final = {
    **dict.fromkeys((".pt", ".pt2", ".onnx"), "base_handler"),
    **dict.fromkeys((".joblib", ".skops", ".json", ".ubj"), "tabular"),
}
# Packages that the worker has imported before the script, which could not be imported under their name.
_TAKEN: Final = frozenset({"modelserver", "modelserver_handlers", "ts", "torch", "numpy", "msgspec"})
_LARGEST_SOURCE: Final = 1 << 20
_COMPUTED: Final = re.compile(rb"\b(import_module|__import__|exec|spec_from_file_location|runpy)\b")
_MANIFEST_FOLDER: Final = MANIFEST_PATH.partition("/")[0]


def lay_out_file(single: SingleFile, folder: Path) -> None:
    """Makes ``folder`` that of an archive; ``path`` and ``model_file`` are absolute.

    Raises ``InvalidModel`` for a name that the script does not have, and for a model file that cannot be
    served as it is, with what to do; and ``OSError``.
    """
    path = Path(single.path)
    make_folder(folder)
    model = {"modelName": single.name or path.stem, "modelVersion": "1.0"}
    if path.suffix == ".py":
        model["handler"] = _lay_out_script(path, single.name, folder)
        if single.model_file:
            model["serializedFile"] = _linked(folder, Path(single.model_file), Path(single.model_file).name)
    else:
        suffix = _format_of(single, path)
        model["handler"] = _HANDLERS[suffix]
        model["serializedFile"] = _linked(folder, path, f"{path.stem}{suffix}")
    write_manifest(folder, model)


def make_folder(folder: Path) -> None:
    """Makes an archive's folder, which only this user can read. Raises ``OSError``."""
    (folder / _MANIFEST_FOLDER).mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)


def write_manifest(folder: Path, model: dict[str, str]) -> None:
    """Writes the manifest of a model into its folder. Raises ``OSError``."""
    manifest = {"runtime": "python", "model": model}
    (folder / MANIFEST_PATH).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def handler_of(single: SingleFile) -> str:
    """The built-in handler of such a model file, by its name; empty for a script."""
    return _HANDLERS.get(single.suffix, "")


def _format_of(single: SingleFile, path: Path) -> str:
    """The suffix of a model file's format, by its content. Raises InvalidModel."""
    suffix, content = single.suffix, look(path)
    if suffix == ModelKind.PICKLE.value and content.kind in (
        ModelKind.UNKNOWN,
        ModelKind.MODULE,
        ModelKind.WEIGHTS,
    ):
        content = Seen(ModelKind.PICKLE, content.of)
    if content.kind is ModelKind.PICKLE and single.trusts_pickles:
        return ModelKind.PICKLE.value
    if problem := advice(path, content):
        raise InvalidModel(problem)
    suffix = content.kind.value or suffix
    if suffix not in _HANDLERS:
        raise InvalidModel(f"{path.name} is not what its name says: no {suffix} file.")
    return suffix


def _lay_out_script(script: Path, name: str, folder: Path) -> str:
    """Returns the handler of the manifest."""
    if script.stem in _TAKEN:
        raise InvalidModel(f"{script.name} hides the package {script.stem}: give the script another name.")
    if name:
        _check_name(script, name)
    # A module's name has no dots.
    module = f"{script.stem.replace('.', '_')}.py"
    shutil.copyfile(script, folder / module)
    reached = _reached(script)
    for neighbour in script.parent.iterdir():
        if reached is not None and neighbour.suffix == ".py" and neighbour.stem not in reached:
            continue
        if _is_of_use(neighbour.name) and not (folder / neighbour.name).exists():
            _bring(neighbour, folder / neighbour.name)
    return f"{module}:{name}" if name else module


def _reached(script: Path) -> set[str] | None:
    """The modules beside a script that its imports lead to; None if that cannot be told.

    Others stay out of the folder, as what they import would be imported ahead for the workers.
    """
    folder, reached, ahead = script.parent, set[str](), [script.stem]
    while ahead:
        module = ahead.pop()
        if module in reached:
            continue
        if (folder / module / "__init__.py").is_file():
            return None
        source = folder / f"{module}.py"
        if source.is_file():
            names = _imports(source)
            if names is None:
                return None
            reached.add(module)
            ahead += names
    return reached


def _imports(source: Path) -> set[str] | None:
    """The first parts of all names in imports; None if it cannot be read, or computes what it imports."""
    if source.stat().st_size > _LARGEST_SOURCE:
        return None
    text = source.read_bytes()
    if _COMPUTED.search(text):
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return imported_names(tree)


def imported_names(tree: ast.Module) -> set[str]:
    """The first parts of the names that a source imports, but not relatively."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


def _is_of_use(name: str) -> bool:
    """Whether a script may want what is beside it: not archives, caches, or what is hidden."""
    return not (name.startswith((".", "__pycache__")) or name == _MANIFEST_FOLDER or name.endswith(SUFFIXES))


def _bring(path: Path, place: Path) -> None:
    if path.suffix == ".py" and path.is_file() and path.stat().st_size <= _LARGEST_SOURCE:
        shutil.copyfile(path, place)
    else:
        place.symlink_to(path.absolute())


def _linked(folder: Path, path: Path, name: str) -> str:
    """Links the file into the folder, instead of another of its name; returns the name."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(path)
    return name


def _check_name(script: Path, name: str) -> None:
    """Raises InvalidModel, with the names that there are, if the script does not define or import it."""
    try:
        body = ast.parse(script.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The worker will report it, with the line.
        return
    bound = set(_bound(body))
    if name in bound or "*" in bound:
        return
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = ", ".join(node.name for node in body if isinstance(node, kinds)) or "no class and no function"
    raise InvalidModel(f"{script.name} has no {name}: it defines {names}.")


def _bound(body: list[Any]) -> Iterator[str]:
    """The names that these statements bind in their module; ``*`` if that is not known."""
    for statement in body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name
            continue
        for node in ast.walk(statement):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name
