import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.tensors.datatypes import DATATYPES, TensorError, pack
from modelserver.engine.tensors.rest import InferRequest, RequestedOutput
from modelserver.engine.tensors.rows import (
    Form,
    InputForm,
    OutputForm,
    count_rows,
    cut,
    decode_form,
    is_plain,
    join_answers,
    pack_answer,
    separate,
)
from modelserver.engine.tensors.tensor import Tensor


def tensor(name, datatype, shape, values, **more):
    return Tensor(name, datatype, shape, memoryview(pack(datatype, values)), **more)


X = tensor("x", "INT16", (2, 2), [1, 2, 3, 4])
WORDS = tensor("w", "BYTES", (2,), [b"a", b"bcd"], text=True)


def test_one_input_is_cut_without_copies():
    _, whole, rows = cut(InferRequest([X]))

    assert not whole
    assert [bytes(row) for row in rows] == [pack("INT16", [1, 2]), pack("INT16", [3, 4])]
    assert all(isinstance(row, memoryview) and row.obj is X.data.obj for row in rows)


def test_several_inputs_lie_side_by_side():
    extra, _, rows = cut(InferRequest([WORDS, X]))
    form = decode_form(extra)

    assert form.inputs == (InputForm("w", "BYTES", (), text=True), InputForm("x", "INT16", (2,)))
    assert [list(map(bytes, separate(form, memoryview(row)))) for row in rows] == [
        [b"\x01\0\0\0a", pack("INT16", [1, 2])],
        [b"\x03\0\0\0bcd", pack("INT16", [3, 4])],
    ]


@pytest.mark.parametrize(
    "inputs",
    [
        [tensor("x", "INT8", (), [1])],
        [tensor("x", "INT8", (0, 3), [])],
        [X, tensor("y", "INT8", (1,), [1])],
        [tensor("x", "INT8", (1,), [1]), tensor("y", "INT8", (), [1])],
    ],
    ids=["scalar", "no rows", "other counts", "one scalar"],
)
def test_what_has_no_rows_stays_whole(inputs):
    extra, whole, rows = cut(InferRequest(inputs))

    assert whole
    assert count_rows(inputs) == 0
    assert [each.shape for each in decode_form(extra).inputs] == [each.shape for each in inputs]
    assert b"".join(rows) == b"".join(each.data for each in inputs)


def form(**fields):
    return cut(InferRequest([X], **fields))[0]


def test_equal_forms_may_share_a_batch():
    """Neither the id, nor the form of answers, nor the order of parameters keeps rows apart."""
    wish = [RequestedOutput("p", binary=True, parameters={})]

    assert form(id="1", binary=True) == form(id="2")
    assert form(parameters={"a": 1, "b": 2}) == form(parameters={"b": 2, "a": 1})
    assert form(parameters={}) == form()
    assert form(outputs=wish) == form(outputs=[RequestedOutput("p", binary=False, parameters={})])


def test_forms_that_differ():
    """Each of these keeps rows apart (F22)."""
    forms = [
        form(),
        form(parameters={"a": 1}),
        form(parameters={"a": True}),
        form(outputs=[RequestedOutput("p", binary=False, parameters={})]),
        form(outputs=[RequestedOutput("p", binary=False, parameters={"k": 1})]),
        cut(InferRequest([tensor("x", "UINT16", (2, 2), [1, 2, 3, 4])]))[0],
        cut(InferRequest([tensor("x", "INT16", (4,), [1, 2, 3, 4])]))[0],
        cut(InferRequest([tensor("x", "INT16", (0, 2), [])]))[0],
        cut(InferRequest([tensor("y", "INT16", (2, 2), [1, 2, 3, 4])]))[0],
        cut(InferRequest([tensor("x", "INT16", (2, 2), [1, 2, 3, 4], parameters={"a": 1})]))[0],
        cut(InferRequest([WORDS]))[0],
        cut(InferRequest([tensor("w", "BYTES", (2,), [b"a", b"b"])]))[0],
    ]

    assert len(set(forms)) == len(forms)


@pytest.mark.parametrize(
    ("request_", "plain"),
    [
        (InferRequest([WORDS], id="7", parameters={}, binary=True), True),
        (InferRequest([tensor("other", "BYTES", (2, 1), [b"a", b"\xff"])]), True),
        (InferRequest([tensor("w", "BYTES", (1, 1, 1), [b""])]), True),
        (InferRequest([X]), False),
        (InferRequest([WORDS, tensor("v", "BYTES", (2,), [b"a", b"b"])]), False),
        (InferRequest([tensor("w", "BYTES", (1, 2), [b"a", b"b"])]), False),
        (InferRequest([tensor("w", "BYTES", (2, 0), [])]), False),
        (InferRequest([tensor("w", "BYTES", (0,), [])]), False),
        (InferRequest([tensor("w", "BYTES", (), [b"a"])]), False),
        (InferRequest([tensor("w", "BYTES", (1,), [b"a"], parameters={"a": 1})]), False),
        (InferRequest([WORDS], parameters={"a": 1}), False),
        (InferRequest([WORDS], outputs=[RequestedOutput("p", binary=False, parameters={})]), False),
    ],
)
def test_plain_rows_are_recognised(request_, plain):
    """One element of BYTES a row is what other protocols bring, too, unless it has parameters (F22)."""
    assert is_plain(request_) is plain


@pytest.mark.parametrize("row", [b"", b"\x01\0\0\0", b"\x01\0\0\0ab", b"\x09\0\0\0a"])
def test_rows_that_are_not_of_the_form(row):
    with pytest.raises(TensorError):
        separate(Form((InputForm("w", "BYTES", ()),)), memoryview(row))


def answer(name, datatype, shape, values):
    return pack_answer([(OutputForm(name, datatype, shape), pack(datatype, values))])


@given(
    st.sampled_from(sorted({*DATATYPES} - {"FP16", "BF16", "FP32", "BOOL"})),
    st.lists(st.lists(st.integers(0, 100), min_size=3, max_size=3), min_size=1, max_size=5),
)
def test_rows_are_joined(datatype, rows):
    (output,) = join_answers([answer("p", datatype, (3,), row) for row in rows], whole=False)

    assert (output.name, output.datatype, output.shape) == ("p", datatype, (len(rows), 3))
    assert bytes(output.data) == pack(datatype, [value for row in rows for value in row])
    assert output.size == len(output.data)


def test_several_outputs_are_joined_and_whole_answers_stay():
    (whole,) = join_answers([answer("p", "INT8", (2, 1), [1, 2])], whole=True)
    words, numbers = OutputForm("w", "BYTES", ()), OutputForm("n", "INT8", (2,))
    rows = [
        pack_answer([(words, pack("BYTES", [word])), (numbers, bytes([n, n]))])
        for n, word in enumerate([b"a", b"", b"abc"])
    ]
    words, counts = join_answers(rows, whole=False)

    assert whole.shape == (2, 1)
    assert bytes(words.data) == pack("BYTES", [b"a", b"", b"abc"])
    assert (counts.shape, bytes(counts.data)) == ((3, 2), bytes([0, 0, 1, 1, 2, 2]))


@pytest.mark.parametrize("damaged", [b"", b"\xff\0\0\0", b"\x01\0\0\0\xc1", b"\x05\0\0\0\x91\x93\xa1p\xa0"])
def test_damaged_answers_are_refused(damaged):
    """A worker runs what users wrote: what it sends is checked."""
    with pytest.raises(TensorError, match="an answer is malformed"):
        join_answers([damaged], whole=False)


def test_whole_and_broken_numbers_are_joined():
    (output,) = join_answers(
        [answer("p", "INT64", (), [1]), answer("p", "FP64", (), [2.5]), answer("p", "INT64", (), [3])],
        whole=False,
    )

    assert (output.datatype, bytes(output.data)) == ("FP64", pack("FP64", [1, 2.5, 3]))


def test_whole_numbers_beyond_int64_are_joined():
    great = answer("p", "UINT64", (), [1 << 63])
    (output,) = join_answers([answer("p", "INT64", (), [1]), great], whole=False)
    (broken,) = join_answers(
        [great, answer("p", "INT64", (), [-1]), answer("p", "FP64", (), [1])], whole=False
    )

    assert (output.datatype, bytes(output.data)) == ("UINT64", pack("UINT64", [1, 1 << 63]))
    assert (broken.datatype, bytes(broken.data)) == ("FP64", pack("FP64", [1 << 63, -1, 1]))
    with pytest.raises(TensorError, match="out of the range of UINT64"):
        join_answers([great, answer("p", "INT64", (), [-1])], whole=False)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (answer("q", "INT64", (2,), [1, 2]), "different outputs: row 0 has 'p', row 1 has 'q'"),
        (answer("p", "INT64", (1,), [1]), r"row 0 is INT64 of shape \[2\], row 1 is INT64 of shape \[1\]"),
        (answer("p", "FP64", (1,), [1]), "output 'p' cannot be joined"),
        (answer("p", "INT32", (2,), [1, 2]), "row 1 is INT32"),
        (pack_answer([]), "row 1 has none"),
    ],
)
def test_rows_that_do_not_fit(other, what):
    with pytest.raises(TensorError, match=what):
        join_answers([answer("p", "INT64", (2,), [1, 2]), other], whole=False)
