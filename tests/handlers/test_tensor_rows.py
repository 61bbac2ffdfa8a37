import numpy
import pytest
import torch

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.context import Context
from modelserver_handlers.tensor_rows import TensorRows, rows_of, stacked


def batch(**columns):
    tensors = {name: torch.as_tensor(values) for name, values in columns.items()}
    (count,) = {len(tensor) for tensor in tensors.values()}
    names = {name: name for name in tensors} if len(tensors) > 1 else dict.fromkeys(tensors, "data")
    rows = [{names[name]: tensor[n] for name, tensor in tensors.items()} for n in range(count)]
    return TensorRows(rows, tensors)


class Linear(BaseHandler):
    """A handler that has its network and needs no files."""

    def __init__(self, model=None):
        super().__init__()
        self.device = torch.device("cpu")
        self.model = model or (lambda x: x * 2)


def answers(handler, data):
    return handler.handle(data, Context("m", "/", None, len(data), None, "0"))


def test_parts_of_rows_have_their_tensors_and_are_apart():
    rows = batch(x=[[1.0], [2.0], [3.0], [4.0]])
    middle, apart = rows.pick([1, 2]), rows.pick([0, 3])

    assert isinstance(rows[1:3], TensorRows)
    assert rows[1:3].tensors["x"].tolist() == [[2], [3]]
    assert middle.tensors["x"].data_ptr() == rows.tensors["x"][1].data_ptr()
    assert apart.tensors["x"].tolist() == [[1], [4]]
    assert [row["data"].item() for row in apart] == [1, 4]

    rows.pick([0, 1])[0].clear()
    assert rows[0]["data"].item() == 1


def test_writing_is_noticed():
    for write in (
        lambda rows: rows.tensors["x"].add_(1),
        lambda rows: rows[0]["data"].add_(1),
        lambda rows: rows.pick([0, 1]).tensors["x"].add_(1),
    ):
        rows = batch(x=[1.0, 2.0])
        before = rows.changed
        write(rows)
        assert (before, rows.changed) == (False, True)


def test_arrays_need_no_count_of_changes():
    array = numpy.arange(3)
    rows = TensorRows([{"data": each} for each in array], {"x": array})

    assert not rows.changed
    assert rows.pick([0, 2]).tensors["x"].tolist() == [0, 2]


def test_rows_of_equal_tensors_are_stacked_again():
    tensors = stacked(list(batch(a=[1, 2], b=[3, 4])))

    assert {name: value.tolist() for name, value in tensors.items()} == {"a": [1, 2], "b": [3, 4]}
    assert stacked([{"body": b"a"}]) is None
    assert stacked([]) is None
    assert stacked([{}]) is None
    assert stacked(torch.tensor([1])) is None

    with pytest.raises(RuntimeError, match="equal size"):
        stacked([{"data": torch.zeros(2)}, {"data": torch.zeros(3)}])


def test_outputs_become_rows():
    one, two = torch.tensor([[1], [2]]), torch.tensor([3.0, 4.0], requires_grad=True)

    assert [row.tolist() for row in rows_of(one)] == [[1], [2]]
    assert [tuple(each.tolist() for each in row) for row in rows_of([one, two])] == [([1], 3), ([2], 4)]
    assert [{k: v.tolist() for k, v in row.items()} for row in rows_of({"p": two})] == [{"p": 3}, {"p": 4}]


def test_a_plain_handler_takes_tensors():
    seen = []

    def model(x):
        seen.append(x)
        return x.to(torch.bfloat16) * 2

    rows = batch(x=[[1.0], [2.0]])
    got = answers(Linear(model), rows)

    assert seen[0].data_ptr() == rows.tensors["x"].data_ptr()
    assert [(row.dtype, row.tolist()) for row in got] == [(torch.bfloat16, [2]), (torch.bfloat16, [4])]


def test_several_inputs_are_named_and_rows_stacked():
    got = answers(Linear(lambda a, b: (a + b, a * b)), batch(a=[1, 2], b=[3, 4]))

    assert [tuple(each.item() for each in row) for row in got] == [(4, 3), (6, 8)]

    assert answers(Linear(), list(batch(x=[1, 2]))) == [2, 4]


def test_preprocess_tensors_gets_tensors_by_name():
    class Own(Linear):
        def preprocess_tensors(self, inputs):
            return inputs["a"] + inputs["b"]

        def preprocess(self, data):
            return torch.tensor([float(row["body"]) for row in data])

    assert [row.item() for row in answers(Own(), batch(a=[1, 2], b=[3, 4]))] == [8, 12]
    assert answers(Own(), [{"body": b"3"}]) == [6.0]
