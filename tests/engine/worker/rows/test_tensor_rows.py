import math
import pickle
import sys

import numpy
import pytest
import torch
from tests.engine.worker.channels import service_of

from modelserver.engine.tensors.datatypes import DATATYPES, pack, unpack
from modelserver.engine.tensors.rest import InferRequest, RequestedOutput
from modelserver.engine.tensors.rows import cut, join_answers
from modelserver.engine.tensors.tensor import Tensor
from modelserver.engine.wire.messages import TENSORS, OutputSpec, Predict, Row
from modelserver.engine.worker.rows.rows import decode_row, request_parameters
from modelserver.engine.worker.rows.tensor_rows import EmptyInput, UnknownOutput, decode_rows, encode_output
from modelserver_handlers.answers import Unserializable
from modelserver_handlers.tensor_rows import TensorRows

_INTEGERS = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)]
NUMERIC = {
    **{name.upper(): getattr(torch, name) for name in ("bool", *_INTEGERS)},
    **{f"FP{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    "BF16": torch.bfloat16,
}


def tensor(name, datatype, shape, values, **more):
    return Tensor(name, datatype, shape, memoryview(pack(datatype, values)), **more)


def sent(*inputs, **fields):
    extra, _, bodies = cut(InferRequest(list(inputs), **fields))
    rows = [Row(f"id{n}", len(body), TENSORS, extra=extra) for n, body in enumerate(bodies)]
    return rows, b"".join(bodies)


def got(*inputs):
    rows, tail = sent(*inputs)
    return decode_rows(rows, memoryview(tail))


@pytest.fixture
def without_torch(monkeypatch):
    """Rows in a worker whose handler does not import torch."""
    monkeypatch.delitem(sys.modules, "torch")


@pytest.mark.parametrize("datatype", NUMERIC)
def test_numbers_are_tensors(datatype):
    rows = got(tensor("x", datatype, (2, 3), [0, 1, 1, 1, 0, 1]))

    assert isinstance(rows, TensorRows)
    assert rows.tensors["x"].tolist() == [[0, 1, 1], [1, 0, 1]]
    assert [row["data"].tolist() for row in rows] == [[0, 1, 1], [1, 0, 1]]
    assert rows[1]["data"].dtype == NUMERIC[datatype]
    assert rows[1]["data"].data_ptr() == rows.tensors["x"][1].data_ptr()
    assert joined(rows[1]["data"]) == {"output_0": (datatype, (1, 3), [1, 0, 1])}


def test_several_inputs_have_their_names():
    rows = got(tensor("a", "FP32", (2,), [1.5, 2.5]), tensor("b", "INT64", (2, 2), [1, 2, 3, 4]))

    assert isinstance(rows, TensorRows)
    lists = {name: value.tolist() for name, value in rows.tensors.items()}
    assert lists == {"a": [1.5, 2.5], "b": [[1, 2], [3, 4]]}
    assert rows[1]["b"].tolist() == [3, 4]
    assert rows.tensors["b"].is_contiguous()


def test_tensors_are_the_handlers_own():
    rows, tail = sent(tensor("x", "INT8", (2,), [1, 2]))
    frame = bytearray(tail)
    received = decode_rows(rows, memoryview(frame))
    frame[:] = b"\x07\x07"
    received[0]["data"] += 10

    assert [row["data"].item() for row in received] == [11, 2]


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("datatype", sorted(NUMERIC))
def test_arrays_need_no_torch(datatype, monkeypatch):
    monkeypatch.delitem(sys.modules, "ml_dtypes", raising=False)
    rows = got(tensor("x", datatype, (2, 1), [0, 1]), tensor("y", "INT8", (2,), [5, 6]))
    name = str(NUMERIC[datatype]).removeprefix("torch.").replace("bfloat16", "float32")

    assert isinstance(rows, TensorRows)
    assert rows[1]["x"].tolist() == [1]
    assert rows[1]["x"].dtype == numpy.dtype(name)
    assert rows.tensors["y"].tolist() == [5, 6]
    with pytest.raises(ValueError, match="read-only"):
        rows[1]["x"][0] = 5


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("trailing", [(), (1,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("datatype", [*NUMERIC, "BYTES", "text"])
def test_a_returned_tensor_equals_the_received_one(datatype, trailing, monkeypatch):
    monkeypatch.delitem(sys.modules, "ml_dtypes", raising=False)
    text, size = datatype == "text", math.prod(trailing)
    if text or datatype == "BYTES":
        datatype, row = "BYTES", pack("BYTES", ["ü".encode() if text else b"\xff"] * size)
    else:
        row = bytes(range(size * DATATYPES[datatype].width))
        row = bytes(byte % 2 for byte in row) if datatype == "BOOL" else row
    received = Tensor("x", datatype, (2, *trailing), memoryview(row * 2), text=text)
    (_, lone), (_, one) = got(received), got(received, tensor("y", "BYTES", (2,), [b"", b"a"]))

    for value in (next(iter(lone.values())), one["x"]):
        name, shape, data = packed(bytes(value) if isinstance(value, bytearray) else value)
        assert (name, data) == (datatype, row)
        assert shape == (1, *trailing) or (datatype == "BYTES" and size == 1)


def packed(value):
    rows, _ = sent(tensor("x", "INT8", (1,), [1]))
    (output,) = join_answers([encode_output(value, rows[0], [])], whole=False)
    return output.datatype, output.shape, bytes(output.data)


@pytest.mark.usefixtures("without_torch")
def test_what_is_computed_of_bf16_is_fp32(monkeypatch):
    monkeypatch.delitem(sys.modules, "ml_dtypes", raising=False)
    value = got(tensor("x", "BF16", (1, 2), [1.5, 2.5]))[0]["data"]

    assert joined(value[1:])["output_0"] == ("BF16", (1, 1), [2.5])
    assert joined(value * 1.001)["output_0"][0] == "FP32"
    assert joined(value.copy())["output_0"][0] == "FP32"
    assert pickle.loads(pickle.dumps(value)).tolist() == [1.5, 2.5]


def test_bytes_are_texts_blobs_or_lists():
    blobs = got(tensor("x", "BYTES", (2,), [b"a", b"\xff"]))
    texts = got(tensor("x", "BYTES", (2, 1), [b"a", "ü".encode()], text=True))

    assert blobs == [{"body": bytearray(b"a")}, {"body": bytearray(b"\xff")}]
    assert texts == [{"data": "a"}, {"data": "ü"}]

    rows = got(
        tensor("t", "BYTES", (2,), [b"a", b"b"], text=True),
        tensor("b", "BYTES", (2, 2), [b"c", b"d", b"e", b"f"]),
        tensor("n", "FP32", (2,), [1, 2]),
    )

    assert rows[1]["t"] == "b"
    assert rows[1]["b"] == [b"e", b"f"]
    assert rows[1]["n"].item() == 2


def test_parameters_of_a_request_reach_the_handler():
    rows, _ = sent(
        tensor("x", "INT8", (1,), [1], parameters={"a": 1}),
        parameters={"k": 3},
        outputs=[RequestedOutput("p", binary=True, parameters={"d": 2})],
    )
    bare, tail = sent(tensor("x", "INT8", (1,), [1]))

    fields = {"inputs": {"x": {"a": 1}}, "outputs": {"p": {"d": 2}}}
    assert request_parameters(rows[0]) == {"parameters": {"k": 3}, **fields}
    assert request_parameters(bare[0]) == {}
    assert decode_row(bare[0], memoryview(tail), decode=True).data["data"].item() == 1


def joined(value, specs=None, **fields):
    """Datatype, shape and elements of each output of a request of one row."""
    rows, _ = sent(tensor("x", "INT8", (1,), [1]), **fields)
    outputs = join_answers([encode_output(value, rows[0], specs or [])], whole=False)
    return {each.name: (each.datatype, each.shape, unpack(each.datatype, each.data)) for each in outputs}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ("BOOL", (1,), [True])),
        (7, ("INT64", (1,), [7])),
        (1.5, ("FP64", (1,), [1.5])),
        ("ü", ("BYTES", (1,), ["ü".encode()])),
        (b"\xff", ("BYTES", (1,), [b"\xff"])),
        ([1, 2], ("INT64", (1, 2), [1, 2])),
        ([[1, 2.5], [3, 4]], ("FP64", (1, 2, 2), [1, 2.5, 3, 4])),
        ([[1], [2, 3]], ("BYTES", (1,), [b"[[1],[2,3]]"])),
        ([True, 1], ("BYTES", (1,), [b"[true,1]"])),
        ([1, "a"], ("BYTES", (1,), [b'[1,"a"]'])),
        ([], ("BYTES", (1,), [b"[]"])),
        ((1 << 64) - 1, ("UINT64", (1,), [(1 << 64) - 1])),
        ([[0, 1 << 63]], ("UINT64", (1, 1, 2), [0, 1 << 63])),
        ([-1, 1 << 63], ("BYTES", (1,), [b"[-1,9223372036854775808]"])),
        ([b"a", b"\xff"], ("BYTES", (1, 2), [b"a", b"\xff"])),
        (["a", "b"], ("BYTES", (1,), [b'["a","b"]'])),
        (1 << 70, ("BYTES", (1,), [str(1 << 70).encode()])),
        ({"cat": 0.5}, ("BYTES", (1,), [b'{"cat":0.5}'])),
        (None, ("BYTES", (1,), [b"null"])),
        (numpy.array(["a", b"b"], object), ("BYTES", (1, 2), [b"a", b"b"])),
        (torch.empty(0, 2), ("FP32", (1, 0, 2), [])),
    ],
    ids=repr,
)
def test_values_become_one_output(value, expected):
    assert joined(value) == {"output_0": expected}


def test_dicts_and_tuples_are_several_outputs():
    one, two = torch.tensor([1]), numpy.array([2], "i2")
    specs = [OutputSpec("p", "FP32", (-1,)), OutputSpec("q", "BYTES", (-1, -1))]

    assert joined({"a": one, "b": two}) == {"a": ("INT64", (1, 1), [1]), "b": ("INT16", (1, 1), [2])}
    assert list(joined((one, two))) == ["output_0", "output_1"]
    assert list(joined((one, two), specs)) == ["p", "q"]
    result = {"q": ("BYTES", (1, 2), [b"a", b"b"]), "p": ("FP32", (1,), [3.0])}
    assert joined({"q": ["a", b"b"], "p": 3}, specs) == result
    assert list(joined({"p": 1, "r": 2}, specs)) == ["p"]


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        (("INT8", (-1,)), 3, ("INT8", (1,), [3])),
        (("FP16", (-1, 2)), [1, 2], ("FP16", (1, 2), [1, 2])),
        (("INT8", (-1,)), 2.5, ("FP64", (1,), [2.5])),
        (("FP32", (-1, 1)), 2.5, ("FP32", (1, 1), [2.5])),
        (("INT64", (-1, 1, 2)), [1, 2], ("INT64", (1, 1, 2), [1, 2])),
        (("INT64", (-1, 3)), [1, 2], ("INT64", (1, 2), [1, 2])),
        (("BYTES", (-1,)), [1, 2], ("BYTES", (1,), [b"[1,2]"])),
    ],
)
def test_a_signature_says_the_datatype(spec, value, expected):
    assert joined(value, [OutputSpec("p", *spec)]) == {"p": expected}


def test_values_without_a_form_are_refused():
    for value, what in (
        (torch.tensor([1j]), "output 'output_0': tensors of torch.complex64"),
        (object(), "object"),
    ):
        with pytest.raises(Unserializable, match=what):
            joined(value)
    with pytest.raises(Unserializable, match="output 'p': a value is out of the range of INT8"):
        joined(1000, [OutputSpec("p", "INT8", (-1,))])


def test_only_requested_outputs_are_returned():
    requested = [RequestedOutput(name, binary=False, parameters={}) for name in ("b", "a")]
    answer = {"a": torch.tensor([1]), "b": torch.tensor([2]), "c": torch.tensor([3])}

    assert list(joined(answer, outputs=requested)) == ["b", "a"]
    with pytest.raises(UnknownOutput, match="b"):
        joined({"a": torch.tensor([1])}, outputs=requested)


def run(handler, *inputs, **fields):
    service = service_of(handler)
    rows, tail = sent(*inputs, **fields)
    work = service.take(Predict(7, rows), memoryview(tail))
    service.run(work)
    message, contents = work.result(0.5)
    return list(zip(message.answers, contents, strict=True))


FOUR = tensor("x", "FP32", (4,), [1, 2, 3, 4])


def test_a_batch_with_a_type_unknown_to_torch_is_refused(monkeypatch):
    monkeypatch.delattr(torch, "uint16")
    answers = run(lambda _data, _context: pytest.fail("called"), tensor("x", "UINT16", (2,), [1, 2]))

    assert [(answer.status, answer.error_type) for answer, _ in answers] == [(400, "BadRequestException")] * 2
    reasons = {content.partition(b", ")[0] for _, content in answers}
    assert reasons == {b"tensors of UINT16 need torch 2.3 or newer"}


def test_a_guilty_row_fails_alone():
    """The halves of a failed batch have the halves of its tensors (F18)."""
    calls = []

    def handler(data, _):
        calls.append(data.tensors["x"].tolist())
        if 3 in calls[-1]:
            raise ValueError("three")
        return [row["data"] for row in data]

    answers = run(handler, FOUR)

    assert [answer.status for answer, _ in answers] == [200, 200, 500, 200]
    assert answers[2][1] == b"ValueError : three"
    assert calls[:3] == [[1, 2, 3, 4], [1, 2], [3, 4]]


def test_rows_that_were_written_to_are_not_tried_again():
    """A second call would see what the first one has made of them."""
    calls = []

    def handler(data, _):
        calls.append(len(data))
        with torch.inference_mode():
            data.tensors["x"].mul_(2)
        raise ValueError("as asked")

    answers = run(handler, FOUR)

    assert calls == [4]
    assert [answer.status for answer, _ in answers] == [500] * 4


def test_failures_have_kserves_messages():
    requested = {"outputs": [RequestedOutput("q", binary=False, parameters={})]}

    (few, text), *_ = run(lambda data, _: [], FOUR)
    assert (few.status, text.startswith(b"size of prediction")) == (500, True)
    (strange, text), *_ = run(lambda data, _: [object()] * len(data), FOUR)
    assert strange.status == 500
    assert text == b"Unsupported model output data type: Type is not JSON serializable: object"
    (unknown, text), *_ = run(lambda data, _: [1] * len(data), FOUR, **requested)
    assert (unknown.status, text) == (400, b"Unexpected inference output 'q' for model 'm'")


@pytest.mark.parametrize("specs", [[], [OutputSpec("sum", "FP32", [-1])]])
def test_a_returned_row_is_as_many_outputs(specs):
    rows, tail = sent(
        tensor("text", "BYTES", (2,), [b"a", b"b"], text=True), tensor("n", "INT64", (2, 2), [1, 2, 3, 4])
    )
    pairs = zip(decode_rows(rows, memoryview(tail)), rows, strict=True)
    answers = [encode_output(value, row, specs) for value, row in pairs]
    outputs = {each.name: (each.datatype, each.shape) for each in join_answers(answers, whole=False)}

    assert outputs["n"] == ("INT64", (2, 2))
    assert outputs["text"][0] == "BYTES"


def test_a_request_without_rows_has_no_answers():
    (row,), _ = sent(tensor("x", "FP32", (0, 3), []))
    empty = join_answers([encode_output(numpy.zeros((0, 2), "f4"), row, [])], whole=True)

    assert [each.shape for each in empty] == [(0, 2)]
    for value in (7, "text", [1.0], numpy.zeros((1, 2), "f4"), {"a": 1}):
        with pytest.raises(EmptyInput):
            encode_output(value, row, [])
