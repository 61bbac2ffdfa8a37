"""The graph of a workflow: which node comes after which, with one start and no cycles (reference 19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - helpers read annotations at run time
from graphlib import CycleError, TopologicalSorter

import msgspec

from modelserver.errors import InvalidDag


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
        found = f"nothing comes before {' and '.join(map(repr, starts))}" if starts else "there is no node"
        raise InvalidDag(f"DAG should have only one start node: {found}")
    return Graph(starts[0], tuple(name for name in names if not after[name]), after, before)


def _check_cycles(after: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]) -> None:
    for name, targets in after.items():
        if name in targets:
            raise InvalidDag(f"Self loop exception: {name!r} follows itself")
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        raise InvalidDag(f"Not a valid DAG: there is a cycle, {' -> '.join(error.args[1])}") from None
