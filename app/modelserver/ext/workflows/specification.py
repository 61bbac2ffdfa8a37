"""A workflow's specification: the YAML that names its models and functions and their order (reference 19)."""

from __future__ import annotations

import ast
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import msgspec

from modelserver.errors import InvalidDag, InvalidModel, InvalidWorkflow
from modelserver.ext.workflows.graph import Graph, make_graph
from modelserver.models.options.values import excerpt
from modelserver.models.settings.key import LARGEST

if TYPE_CHECKING:
    from collections.abc import Mapping

# Each has workers of its own.
MAX_NODES = 256
_SECTIONS = ("models", "dag")
# Warnings in a refusal.
_TOLD = 3


class Options(msgspec.Struct, frozen=True):
    """How a node is served. ``batch_size`` and ``max_batch_delay`` (ms) are None where nothing was said.

    A failed attempt is repeated ``retry_attempts`` times; ``timeout_ms`` bounds each attempt.
    """

    min_workers: int = 1
    max_workers: int = 1
    batch_size: int | None = None
    max_batch_delay: int | None = None
    retry_attempts: int = 1
    timeout_ms: int = 10_000


class Node(msgspec.Struct, frozen=True):
    """A model, with the ``url`` of its archive, or a function of the handler's file, without one."""

    name: str
    options: Options
    url: str = ""


class Specification(msgspec.Struct, frozen=True):
    """``nodes`` are those of the graph, by name. ``common`` are the options that nodes may override.

    ``dag`` is the text that describes the graph in TorchServe's form.
    """

    nodes: dict[str, Node]
    graph: Graph
    common: Options
    dag: str
    warnings: tuple[str, ...] = ()


# Smallest values.
_KEYS = {
    "min-workers": 0,
    "max-workers": 0,
    "batch-size": 1,
    "max-batch-delay": 0,
    "retry-attempts": 0,
    "timeout-ms": 1,
}


def parse_specification(text: str, file: str, functions: str | None) -> Specification:
    """Reads the YAML of ``file``; ``functions`` is the source of the handler's file, None without one.

    Raises InvalidWorkflow for what is not of the right form, and InvalidDag for a graph that cannot be run;
    their messages end with unknown keys, which may be the cause.
    """
    from modelserver.models.options.yaml_file import load_document  # noqa: PLC0415 - a helper reads it, not the server

    try:
        document = load_document(text, file)
    except InvalidModel as error:
        raise InvalidWorkflow(f"Failed to parse yaml. {error.message}") from None
    odd = [_unknown(file, key, _SECTIONS) for key in document if key not in _SECTIONS]
    warnings = list(odd)
    try:
        return _specification(document, file, functions, warnings)
    except (InvalidDag, InvalidWorkflow) as error:
        # An unknown section explains nothing where all known ones are there.
        told = warnings[0 if set(_SECTIONS) - document.keys() else len(odd) :]
        if not told:
            raise
        raise type(error)(". ".join([error.message.removesuffix("."), *told[:_TOLD]])) from None


def _specification(
    document: Mapping[str, Any], file: str, functions: str | None, warnings: list[str]
) -> Specification:
    models, dag = (_mapping(document, section, file) for section in _SECTIONS)
    common = _options(models, Options(), f"{file}: models")
    urls: dict[str, tuple[str, Options]] = {}
    for name, model in models.items():
        if name in _KEYS:
            continue
        place = f"{file}: models.{excerpt(name)}"
        if not isinstance(model, dict):
            raise InvalidWorkflow(
                f"{place}={excerpt(model)}: a model with a url is needed, or one of {', '.join(_KEYS)}"
            )
        warnings += [_unknown(place, key, ("url", *_KEYS)) for key in model if key not in ("url", *_KEYS)]
        urls[str(name)] = str(model.get("url") or ""), _options(model, common, place)
    edges = {str(name): _targets(name, targets, file) for name, targets in dag.items()}
    graph = make_graph(edges)
    if len(graph.after) > MAX_NODES:
        raise InvalidDag(f"The graph has {len(graph.after)} nodes, {MAX_NODES} are allowed.")
    known = None if functions is None else _functions(functions)
    alone = Options(retry_attempts=common.retry_attempts, timeout_ms=common.timeout_ms)
    nodes = {name: _node(name, urls, alone, known, file) for name in graph.after}
    return Specification(nodes, graph, common, _dag_text(dag), tuple(warnings))


def _node(
    name: str, urls: Mapping[str, tuple[str, Options]], alone: Options, known: set[str] | None, file: str
) -> Node:
    if name in urls:
        url, options = urls[name]
        if not url:
            raise InvalidWorkflow(f"{file}: models.{excerpt(name)}: a url is needed")
        return Node(name, options, url)
    if known is None:
        raise InvalidDag(f"Unknown node {name!r}: it is not among the models, and there is no handler file.")
    if not name.isidentifier() or ("*" not in known and name not in known):
        raise InvalidDag(
            f"Unknown node {name!r}: it is neither among the models nor a function of the handler file."
        )
    # As in TorchServe, only retries and timeout of the common options are for functions.
    return Node(name, alone)


def _options(given: Mapping[str, Any], common: Options, place: str) -> Options:
    values = {
        key.replace("-", "_"): _number(given[key], smallest, f"{place}.{key}")
        for key, smallest in _KEYS.items()
        if given.get(key) is not None
    }
    options = msgspec.structs.replace(common, **values)
    if options.max_workers < options.min_workers:
        if "max_workers" in values:
            needed = f"a whole number of at least min-workers={options.min_workers}"
            raise InvalidWorkflow(f"{place}.max-workers={options.max_workers}: {needed} is needed")
        options = msgspec.structs.replace(options, max_workers=options.min_workers)
    return options


def _number(value: object, smallest: int, place: str) -> int:
    if type(value) is int and smallest <= value <= LARGEST:
        return value
    raise InvalidWorkflow(f"{place}={excerpt(value)}: a whole number from {smallest} to {LARGEST} is needed")


def _mapping(document: Mapping[str, Any], section: str, file: str) -> dict[Any, Any]:
    found = document.get(section)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidWorkflow(f"{file}: {section}={excerpt(found)}: a mapping (key: value lines) is needed")
    return found


def _targets(name: object, targets: object, file: str) -> list[str]:
    """The names after a node; empty ones say that it is an end."""
    if targets is None:
        return []
    if not isinstance(targets, list) or any(isinstance(each, (dict, list)) for each in targets):
        raise InvalidWorkflow(f"{file}: dag.{excerpt(name)}={excerpt(targets)}: a list of nodes is needed")
    return [str(each) for each in targets if each is not None and str(each).strip()]


def _functions(source: str) -> set[str]:
    """The names that the module binds; ``*`` if it imports everything from another."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidWorkflow(f"The handler file is not valid Python: {error}") from None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _dag_text(dag: Mapping[Any, Any]) -> str:
    """As Java prints a map of lists."""

    def told(value: object) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(told, value))}]"
        return "null" if value is None else str(value)

    return "{" + ", ".join(f"{told(name)}={told(targets)}" for name, targets in dag.items()) + "}"


def _unknown(place: str, key: object, known: tuple[str, ...]) -> str:
    close = get_close_matches(str(key).lower(), known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"{place}: {excerpt(key)} is not known and is ignored{meant}"
