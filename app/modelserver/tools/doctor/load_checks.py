"""Checks of how a handler loads: its imports, its requirements, the mode of its networks."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modelserver.tools.build.lock import OWN, TORCH, installed_packages, normal, parsed
from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.probing import Reported, SourceLine, Training

# Seconds from which an import is worth a finding, and a part of the whole that is worth telling.
_COSTLY: Final = 0.1
_SHARE: Final = 0.05
_MOST_PACKAGES: Final = 5
# What every worker has: the server's own packages, the names that it offers, and torch's family.
_PROVIDED: Final = TORCH | OWN | {"numpy", "PIL", "yaml", "msgspec", "orjson"}
_LARGEST: Final = 1 << 20
_MOST_FILES: Final = 200
_NAME: Final = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EGG: Final = re.compile(r"#egg=([A-Za-z0-9._-]+)|/([A-Za-z0-9._-]+?)(?:\.git)?(?:@|$)")


def check_imports(report: CheckReport, loaded: Reported, folder: Path) -> None:
    """What loading costs, and what of it is for nothing."""
    whole = loaded.import_seconds + loaded.initialize_seconds
    large = [each for each in loaded.imported if each.own >= _SHARE * whole][:_MOST_PACKAGES]
    report.figures["load"] = {
        "import_seconds": round(loaded.import_seconds, 3),
        "initialize_seconds": round(loaded.initialize_seconds, 3),
        "packages": {each.name: round(each.own, 3) for each in large},
    }
    unused = {
        (each.package, each.place.file, each.place.line) for each in imports_of(folder) if not each.used
    }
    for each in loaded.imported:
        place = each.place
        if place and each.total >= _COSTLY and (each.name, place.file, place.line) in unused:
            report.add(
                "import-unused",
                f"{each.name} takes {each.total:.1f} s to import, and {place.file} does not use it.",
                place,
            )
    report.checked.append("imports")


def check_requirements(report: CheckReport, folder: Path, requirements_file: str | None) -> None:
    """Packages that the model's own code imports and no requirements.txt names."""
    file = folder / (requirements_file or "requirements.txt")
    text = file.read_text("utf-8", "replace") if file.is_file() else None
    for package, place in missing(imports_of(folder), text).items():
        lacks = f"{file.name} does not name it" if text is not None else "there is no requirements.txt"
        named = distribution_of(package)
        report.add(
            "not-required",
            f"{place.file} imports {package}, and {lacks}.",
            place,
            f"Write {named} into requirements.txt, pack it with --requirements-file, and set "
            "install_py_dep_per_model=true.",
        )
    report.checked.append("requirements")


def check_training(report: CheckReport, networks: Iterable[Training]) -> None:
    """Networks that compute as if they were trained."""
    place = report.method("initialize", "load", "handle")
    for each in networks:
        network = f"{each.name} ({each.kind}) is in training mode"
        if each.layers:
            report.add("training-mode", f"{network}, with {', '.join(each.layers)}.", place)
        else:
            report.add("training-mode-unused", f"{network}.", place)
    if "training mode" not in report.checked:
        report.checked.append("training mode")


@dataclass(frozen=True, slots=True)
class Import:
    """A package that code imports at a place; ``used``: a name that it binds there is read in the file."""

    package: str
    place: SourceLine
    used: bool


def imports_of(folder: Path) -> list[Import]:
    """The imports of a model's own code that it cannot do without.

    Not those of its own modules, those only for type checkers, and those within ``try`` with an ``except``.
    """
    sources = sorted(folder.rglob("*.py"))[:_MOST_FILES]
    own = {path.stem for path in sources} | {path.name for path in folder.iterdir() if path.is_dir()}
    imports: list[Import] = []
    for path in sources:
        imports += [each for each in _imports(path, str(path.relative_to(folder))) if each.package not in own]
    return imports


def missing(imports: list[Import], requirements: str | None) -> dict[str, SourceLine]:
    """Where packages are imported that are neither required, nor part of Python or of every worker."""
    required = set(_required(requirements or ""))
    absent: dict[str, SourceLine] = {}
    for each in imports:
        if each.package in sys.stdlib_module_names or each.package in _PROVIDED:
            continue
        names = (each.package, *installed_packages().get(each.package, ()))
        if required.isdisjoint(map(normal, names)):
            absent.setdefault(each.package, each.place)
    return absent


def distribution_of(package: str) -> str:
    """The name to install a package by."""
    return next(iter(installed_packages().get(package, ())), package)


def _imports(path: Path, name: str) -> Iterator[Import]:
    if path.stat().st_size > _LARGEST:
        return
    tree = parsed(path)
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    # Names in __all__ and quoted annotations count as used too.
    read |= {word for node in ast.walk(tree) for word in _words(node)}
    for node in _needed(tree):
        aliases = node.names
        place = SourceLine(name, node.lineno)
        if isinstance(node, ast.ImportFrom):
            if node.level or node.module is None or node.module == "__future__":
                continue
            used = any((alias.asname or alias.name) in read | {"*"} for alias in aliases)
            yield Import(node.module.partition(".")[0], place, used or name.endswith("__init__.py"))
            continue
        for alias in aliases:
            package = alias.name.partition(".")[0]
            yield Import(package, place, (alias.asname or package) in read)


def _words(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
        return re.findall(r"\w+", node.value)
    return []


def _needed(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif not _is_optional(child):
            yield from _needed(child)


def _is_optional(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.dump(node.test)
    return isinstance(node, ast.Try) and bool(node.handlers)


def _required(text: str) -> Iterator[str]:
    for written in text.splitlines():
        line = written.partition(" #")[0].strip()
        if "://" in line and "@ " not in line:
            yield from (normal(match[1] or match[2]) for match in _EGG.finditer(line))
        elif not line.startswith(("#", "-")) and (match := _NAME.match(line)):
            yield normal(match[1])
