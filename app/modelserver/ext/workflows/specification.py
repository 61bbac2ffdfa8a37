"""A workflow's specification: the YAML that names its models and functions and their order (reference 19)."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from modelserver.errors import BadRequest
from modelserver.ext.workflows.errors import InvalidDag, InvalidWorkflow
from modelserver.models.options.table import OPTIONS
from modelserver.models.options.values import excerpt

# The number is limited because each node has its own workers.
MAX_NODES = 256
# The range of TorchServe's integers.
LARGEST = 2**31 - 1
_SECTIONS = ("models", "dag")
_LOADS = _, _ON_DEMAND = OPTIONS["load"].values.choices
# The most warnings in a refusal.
_MOST_WARNINGS = 3


class Graph(msgspec.Struct, frozen=True):
    """The nodes in the order in which they were named. ``after`` and ``before`` have an entry for each.

    ``ends`` are the nodes with nothing after them; their answers are the workflow's.
    """

    start: str
    ends: tuple[str, ...]
    after: dict[str, tuple[str, ...]]
    before: dict[str, tuple[str, ...]]


def make_graph(edges: Mapping[str, Sequence[str]]) -> Graph:
    """The graph of the edges from each node to those after it, named once even if they are repeated.

    Raises InvalidDag, beginning with TorchServe's words: no node, a cycle, not exactly one start.
    """
    names = list(dict.fromkeys([*edges, *(name for targets in edges.values() for name in targets)]))
    after = {name: tuple(dict.fromkeys(edges.get(name, ()))) for name in names}
    before: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    for name, targets in after.items():
        for target in targets:
            before[target] = (*before[target], name)
    _check_cycles(after, before)
    starts = [name for name in names if not before[name]]
    if len(starts) != 1:
        problem = f"nothing comes before {' and '.join(map(repr, starts))}" if starts else "there is no node"
        raise InvalidDag(f"DAG should have only one start node: {problem}")
    return Graph(starts[0], tuple(name for name in names if not after[name]), after, before)


def _check_cycles(after: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]) -> None:
    for name, targets in after.items():
        if name in targets:
            raise InvalidDag(f"Self loop exception: {name!r} follows itself")
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        raise InvalidDag(f"Not a valid DAG: there is a cycle, {' -> '.join(error.args[1])}") from None


class NodeOptions(msgspec.Struct, frozen=True):
    """How a node is served. Values are None where the specification does not set them.

    A failed attempt is repeated ``retry_attempts`` times; ``timeout_ms`` bounds each attempt.
    """

    min_workers: int | None = None
    max_workers: int = 1
    batch_size: int | None = None
    max_batch_delay: int | None = None
    retry_attempts: int = 1
    timeout_ms: int = 10_000
    load: str | None = None

    def workers(self, load: str) -> int:
        """The fewest workers; ``load`` is that of the server."""
        if self.min_workers is not None:
            return self.min_workers
        return 0 if (self.load or load) == _ON_DEMAND else 1


class NodeSpec(msgspec.Struct, frozen=True):
    """A model, with the ``url`` of its archive, or a function of the handler's file, without one."""

    name: str
    options: NodeOptions
    url: str = ""


class Specification(msgspec.Struct, frozen=True):
    """``nodes`` are those of the graph, by name. ``common`` are the options that nodes may override.

    ``dag`` is the text that describes the graph in TorchServe's form.
    """

    nodes: dict[str, NodeSpec]
    graph: Graph
    common: NodeOptions
    dag: str
    warnings: tuple[str, ...] = ()


# The options of a node, with their smallest values.
_KEYS = {
    "min-workers": 0,
    "max-workers": 0,
    "batch-size": 1,
    "max-batch-delay": 0,
    "retry-attempts": 0,
    "timeout-ms": 1,
}
_ALL_KEYS = (*_KEYS, "load")


def parse_specification(text: str, file: str, functions: str | None) -> Specification:
    """Reads the YAML of ``file``; ``functions`` is the source of the handler's file, None without one.

    Raises InvalidWorkflow for what is not of the right form, and InvalidDag for a graph that cannot be run;
    their messages end with unknown keys, which may be the cause.
    """
    from modelserver.models.options.yaml_file import load_document  # noqa: PLC0415 - a helper reads it, not the server

    try:
        document = load_document(text, file)
    except BadRequest as error:
        raise InvalidWorkflow(f"Failed to parse yaml. {error.message}") from None
    odd = [_unknown(file, key, _SECTIONS) for key in document if key not in _SECTIONS]
    warnings = list(odd)
    try:
        return _specification(document, file, functions, warnings)
    except (InvalidDag, InvalidWorkflow) as error:
        # An unknown section explains nothing where all known ones are there.
        relevant = warnings[0 if set(_SECTIONS) - document.keys() else len(odd) :]
        if not relevant:
            raise
        raise type(error)(". ".join([error.message.removesuffix("."), *relevant[:_MOST_WARNINGS]])) from None


def _specification(
    document: Mapping[str, Any], file: str, functions: str | None, warnings: list[str]
) -> Specification:
    models, dag = (_mapping(document, section, file) for section in _SECTIONS)
    common = _options(models, NodeOptions(), f"{file}: models")
    urls: dict[str, tuple[str, NodeOptions]] = {}
    for name, model in models.items():
        if name in _ALL_KEYS:
            continue
        place = f"{file}: models.{excerpt(name)}"
        if not isinstance(model, dict):
            raise InvalidWorkflow(
                f"{place}={excerpt(model)}: a model with a url is needed, or one of {', '.join(_ALL_KEYS)}"
            )
        known_keys = ("url", *_ALL_KEYS)
        warnings += [_unknown(place, key, known_keys) for key in model if key not in known_keys]
        urls[str(name)] = str(model.get("url") or ""), _options(model, common, place)
    edges = {str(name): _targets(name, targets, file) for name, targets in dag.items()}
    graph = make_graph(edges)
    if len(graph.after) > MAX_NODES:
        raise InvalidDag(f"The graph has {len(graph.after)} nodes, {MAX_NODES} are allowed.")
    known = None if functions is None else _functions(functions)
    alone = NodeOptions(retry_attempts=common.retry_attempts, timeout_ms=common.timeout_ms, load=common.load)
    nodes = {name: _node(name, urls, alone, known, file) for name in graph.after}
    return Specification(nodes, graph, common, _dag_text(dag), tuple(warnings))


def _node(
    name: str,
    urls: Mapping[str, tuple[str, NodeOptions]],
    alone: NodeOptions,
    known: set[str] | None,
    file: str,
) -> NodeSpec:
    if name in urls:
        url, options = urls[name]
        if not url:
            raise InvalidWorkflow(f"{file}: models.{excerpt(name)}: a url is needed")
        return NodeSpec(name, options, url)
    if known is None:
        raise InvalidDag(f"Unknown node {name!r}: it is not among the models, and there is no handler file.")
    if not name.isidentifier() or ("*" not in known and name not in known):
        raise InvalidDag(
            f"Unknown node {name!r}: it is neither among the models nor a function of the handler file."
        )
    # As in TorchServe, only retries and timeout of its common options are for functions.
    return NodeSpec(name, alone)


def _options(section: Mapping[str, Any], common: NodeOptions, place: str) -> NodeOptions:
    values: dict[str, Any] = {
        key.replace("-", "_"): _number(section[key], smallest, f"{place}.{key}")
        for key, smallest in _KEYS.items()
        if section.get(key) is not None
    }
    if (load := section.get("load")) is not None:
        if load not in _LOADS:
            raise InvalidWorkflow(f"{place}.load={excerpt(load)}: {' or '.join(_LOADS)} is needed")
        values["load"] = load
    options = msgspec.structs.replace(common, **values)
    if options.min_workers is not None and options.max_workers < options.min_workers:
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
    mapping = document.get(section)
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise InvalidWorkflow(f"{file}: {section}={excerpt(mapping)}: a mapping (key: value lines) is needed")
    return mapping


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
    """The graph in the form in which Java prints a map of lists."""

    def text_of(value: object) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(text_of, value))}]"
        return "null" if value is None else str(value)

    return "{" + ", ".join(f"{text_of(name)}={text_of(targets)}" for name, targets in dag.items()) + "}"


def _unknown(place: str, key: object, known: tuple[str, ...]) -> str:
    close = get_close_matches(str(key).lower(), known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"{place}: {excerpt(key)} is not known and is ignored{meant}"
