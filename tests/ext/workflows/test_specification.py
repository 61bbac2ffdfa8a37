import pytest

from modelserver.ext.workflows.errors import InvalidDag, InvalidWorkflow
from modelserver.ext.workflows.specification import MAX_NODES, NodeOptions, make_graph, parse_specification

FUNCTIONS = "import json as js\nfrom os import path\n\nasync def first(data, context): ...\n\nlast = first\n"
MODELS = "models:\n  m:\n    url: m.mar\n"


def parse(text, functions=FUNCTIONS):
    return parse_specification(text, "flow.yaml", functions)


def test_own_options_win_over_common_ones():
    data = parse(
        "models:\n  m:\n    url: m.mar\n    batch-size: 4\n    min-workers: 3\n  n: {url: n.mar}\n"
        "  batch-size: 2\n  max-batch-delay: 7\n  max-workers: 2\n  retry-attempts: 0\n  timeout-ms: 500\n"
        "dag:\n  first: [m]\n  m: [n]\n"
    )

    assert data.common == NodeOptions(None, 2, 2, 7, 0, 500)
    assert data.nodes["m"].options == NodeOptions(3, 3, 4, 7, 0, 500)
    assert data.nodes["n"].options == data.common
    assert data.nodes["first"].options == NodeOptions(retry_attempts=0, timeout_ms=500)
    assert (data.nodes["m"].url, data.nodes["first"].url) == ("m.mar", "")
    assert data.dag == "{first=[m], m=[n]}"


def test_specification_may_leave_much_out():
    for names in ("", "[]", "[null]", '[""]'):
        assert parse(f"dag:\n  last: {names}\n").graph.ends == ("last",)
    for name in ("js", "path", "last"):
        assert set(parse(f"dag:\n  {name}: []\n").nodes) == {name}
    assert parse("dag: {anything: []}", "from x import *\n").nodes
    assert parse(f"{MODELS}dag: {{m: [null]}}", None).dag == "{m=[null]}"

    data = parse(f"{MODELS}    batch_size: 3\n  spare: {{url: absent.mar}}\ndag: {{m: []}}\nmodel: 1\n")

    assert list(data.nodes) == ["m"]
    assert [warning.partition(";")[0] for warning in data.warnings] == [
        "flow.yaml: model is not known and is ignored",
        "flow.yaml: models.m: batch_size is not known and is ignored",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("models: [", "Failed to parse yaml. flow.yaml: line 1"),
        ("- a", "a mapping"),
        ("models: [a]", r"models=\['a'\]: a mapping"),
        ("dag: [a]", r"dag=\['a'\]: a mapping"),
        ("models: {min-workers: two}", "models.min-workers=two: a whole number from 0"),
        ("models: {batch-size: 0}", "models.batch-size=0: a whole number from 1"),
        ("models: {timeout-ms: 1.5}", "models.timeout-ms=1.5"),
        ("models: {retry-attempts: true}", "models.retry-attempts=True"),
        ("models: {min-workers: 3, max-workers: 2}", "max-workers=2: .* min-workers=3"),
        ("models: {load: later}", "models.load=later: at-start or on-demand is needed"),
        ("models: {m: m.mar}", "models.m=m.mar: a model with a url is needed"),
        ("models: {m: {batch-size: 1}}\ndag: {m: []}", "models.m: a url is needed"),
        ("dag: {first: last}", "dag.first=last: a list of nodes"),
        ("dag: {first: [[last]]}", "a list of nodes"),
    ],
)
def test_specification_of_another_form_is_refused(text, why):
    with pytest.raises(InvalidWorkflow, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("dag", "functions", "why"),
    [
        ("{first: [nobody]}", FUNCTIONS, "Unknown node 'nobody'"),
        ('{first: ["../last"]}', FUNCTIONS, "Unknown node '../last'"),
        ('{"a:b": []}', "from x import *", "Unknown node 'a:b'"),
        ("{first: []}", None, "there is no handler file"),
        ("{first: [last], last: [first]}", FUNCTIONS, "cycle"),
    ],
)
def test_graph_that_cannot_be_run_is_refused(dag, functions, why):
    with pytest.raises(InvalidDag, match=why):
        parse(f"dag: {dag}", functions)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "modles: {m: {url: m.mar}}\ndag: {m: []}",
            "modles is not known and is ignored; did you mean models?",
        ),
        (f"{MODELS}dga: {{m: []}}", "dga is not known and is ignored; did you mean dag?"),
        (
            "models: {m: {urls: m.mar}}\ndag: {m: []}",
            "models.m: urls is not known and is ignored; did you mean url?",
        ),
    ],
)
def test_misspelt_key_is_named_in_the_refusal(text, warning):
    with pytest.raises((InvalidDag, InvalidWorkflow)) as refused:
        parse(text)
    assert refused.value.message.endswith(f". flow.yaml: {warning}")

    many = "".join(f"odd{number}: 1\n" for number in range(9))
    with pytest.raises((InvalidDag, InvalidWorkflow)) as refused:
        parse(f"{many}{text}")
    # Other sections explain nothing where both are there.
    assert refused.value.message.count("odd") == (0 if "models: {m: {urls" in text else 3)


def test_number_of_nodes_is_bounded():
    many = ", ".join(f"n{number}" for number in range(MAX_NODES))
    with pytest.raises(InvalidDag, match=f"{MAX_NODES + 1} nodes, {MAX_NODES} are allowed"):
        parse(f"dag: {{a: [{many}]}}")
    with pytest.raises(InvalidWorkflow, match="not valid Python"):
        parse("dag: {a: []}", "def (")


def test_nodes_know_those_before_and_after_them():
    graph = make_graph({"a": ["b", "c", "b"], "b": ["d"], "c": ["d"]})

    assert (graph.start, graph.ends) == ("a", ("d",))
    assert graph.after == {"a": ("b", "c"), "b": ("d",), "c": ("d",), "d": ()}
    assert graph.before == {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}

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
def test_other_graph_is_refused(edges, why):
    with pytest.raises(InvalidDag, match=why):
        make_graph(edges)
