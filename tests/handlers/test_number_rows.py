import json

import pytest
import torch
from tests.handlers.parts import SUM, network
from torch import nn

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.number_rows import datatypes_of, takes_floats

NAMED = network("Named", "a + 10 * b", "a, b")
LOOKUP = network(
    "Lookup", "self.table(x)", table="nn.Embedding.from_pretrained(torch.tensor([[0.0, 0], [1, 2], [3, 4]]))"
)
ONE = [1, 2, 3, 4]


@pytest.fixture
def ask(make_context, begin, tmp_path):
    def requested(rows, source=SUM, config=None):
        (tmp_path / "model.py").write_text(source)
        handler = BaseHandler()
        handler.initialize(make_context(tmp_path, config, modelFile="model.py"))
        state = begin(handler.context, len(rows))
        answers = handler.handle(rows, handler.context)
        return answers, state.rejections

    return requested


@pytest.mark.parametrize(
    "row",
    [
        {"body": ONE},
        {"body": {"data": ONE}},
        {"data": ONE},
        {"data": ONE, "target": 1},
        {"data": bytearray(b"[1, 2, 3, 4]")},
        {"body": bytearray(b'{"data": [1, 2.0, 3, 4]}')},
        {"body": "[1, 2, 3, 4]"},
        {"x": ONE},
        {"version": bytearray(b"from the query"), "body": ONE},
    ],
)
def test_every_form_is_the_same_row(row, ask):
    assert ask([row, {"body": [0, 0, 0, 0]}]) == ([[10.0], [0.0]], {})


def test_instances_are_answered_together(ask):
    rows = [
        {"body": {"data": [0, 0, 0, 1]}},
        {"body": {"instances": [ONE, {"data": [1, 1, 1, 1]}]}},
        {"body": {"instances": []}},
        {"body": json.dumps({"instances": [ONE]}).encode()},
    ]

    assert ask(rows) == (
        [[1.0], {"predictions": [[10.0], [4.0]]}, None, {"predictions": [[10.0]]}],
        {2: (400, "'instances' is empty")},
    )


def test_named_inputs_are_arguments(ask):
    rows = [{"a": [1, 2], "b": [1, 1]}, {"body": {"a": [3, 4], "b": [0, 1]}}]

    assert ask(rows, NAMED)[0] == [[11, 12], [3, 14]]
    assert ask([{"body": {"instances": rows[:1]}}], NAMED)[0] == [{"predictions": [[11, 12]]}]


def test_the_signature_decides_and_what_is_looked_up_stays_whole(ask):
    def config(*inputs):
        return {"signature": {"inputs": [{"name": n, "datatype": d, "shape": [-1, 2]} for n, d in inputs]}}

    both = config(("a", "FP64"), ("b", "INT8"))

    assert ask([{"data": [2, 1]}], LOOKUP)[0] == [[[3.0, 4.0], [1.0, 2.0]]]
    assert ask([{"a": [1, 2], "b": [1, 1]}], NAMED, both)[0] == [[11.0, 12.0]]
    assert ask([{"data": [2.0, 1.0]}], LOOKUP, config(("x", "INT32")))[0] == [[[3.0, 4.0], [1.0, 2.0]]]
    assert datatypes_of(both) == {"a": torch.float64, "b": torch.int8}


def test_types_unknown_to_torch_are_refused(ask, monkeypatch):
    """Before 2.3, torch has no UINT16: each request gets this error."""
    monkeypatch.delattr(torch, "uint16")
    config = {"signature": {"inputs": [{"name": "x", "datatype": "UINT16", "shape": [-1, 4]}]}}

    answers, rejections = ask([{"body": ONE}], SUM, config)

    assert answers == [None]
    assert rejections[0][0] == 400
    assert rejections[0][1].startswith("tensors of UINT16 need torch 2.3 or newer, not ")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"body": bytearray(b"no")}, "not JSON"),
        ({"body": ["a"]}, "not a tensor of numbers"),
        ({"body": None}, "not a tensor of numbers"),
        ({"body": [[1, 2], [3]]}, "not a tensor of numbers"),
        ({"body": [1 << 70]}, "not a tensor of numbers"),
        ({"body": {}}, "no numbers were sent"),
        ({}, "no numbers were sent"),
        ({"body": {"instances": [[1], [1, 2]]}}, "the instances differ in shape"),
        ({"body": b"[" * 100_000}, "not JSON"),
    ],
)
def test_what_are_no_numbers_is_rejected_alone(row, message, ask):
    """It gets a 400 that says why, its neighbours their answers (F18)."""
    answers, rejections = ask([{"body": ONE}, row])

    assert answers == [[10.0], None]
    assert rejections[1][0] == 400
    assert message in rejections[1][1]


def test_bad_rows_fail_without_a_server(make_context, tmp_path):
    handler = BaseHandler()
    handler.context = object()

    with pytest.raises(PredictionException, match="not JSON"):
        handler.preprocess([{"body": b"no"}])


def test_answers_of_ones_own_rows_stay(begin, make_context, tmp_path):
    """A class with a preprocess of its own answers a body with instances as it likes, as in TorchServe."""

    class Counts(BaseHandler):
        def preprocess(self, data):
            return torch.tensor([len(row["body"]["instances"]) for row in data])

        def inference(self, data, *args, **kwargs):
            return data

    context = make_context(tmp_path)
    begin(context)

    assert Counts().handle([{"body": {"instances": [ONE]}}], context) == [1]


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize(
    ("layer", "row", "floats"),
    [
        (nn.Linear(2, 1), torch.zeros(1, 2), True),
        (nn.Embedding(3, 2), torch.zeros(1, 2, dtype=torch.int64), False),
        (nn.ReLU(), torch.zeros(1, 2), False),
    ],
)
def test_whole_numbers_become_floats_for_weights(layer, row, floats):
    exported = torch.export.export(nn.Sequential(layer), (row,)).module()

    assert takes_floats(layer) == floats
    assert takes_floats(torch.jit.script(layer)) == floats
    assert takes_floats(exported) == floats
    assert not takes_floats(len)
