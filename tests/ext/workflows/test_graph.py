"""Graphs of workflows."""

from __future__ import annotations

import pytest

from modelserver.errors import InvalidDag
from modelserver.ext.workflows.graph import make_graph


def test_nodes_know_those_before_and_after_them() -> None:
    """Each node knows those before and after it; repeated names count once."""
    graph = make_graph({"a": ["b", "c", "b"], "b": ["d"], "c": ["d"]})

    assert (graph.start, graph.ends) == ("a", ("d",))
    assert graph.after == {"a": ("b", "c"), "b": ("d",), "c": ("d",), "d": ()}
    assert graph.before == {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def test_ends_are_in_order() -> None:
    """They are in the order in which they were named."""
    assert make_graph({"a": ["z", "b"]}).ends == ("z", "b")


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        ({}, "only one start node: there is no node"),
        ({"a": ["c"], "b": ["c"]}, "only one start node: nothing comes before 'a' and 'b'"),
        ({"a": ["a"]}, "Self loop exception: 'a' follows itself"),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "a cycle, b -> c -> b"),
        ({"a": ["b"], "b": ["a"]}, "a cycle"),
    ],
)
def test_other_graph_is_refused(edges: dict[str, list[str]], why: str) -> None:
    """The refusal says which nodes are wrong."""
    with pytest.raises(InvalidDag, match=why):
        make_graph(edges)
