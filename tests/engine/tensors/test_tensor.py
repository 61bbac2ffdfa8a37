"""Tensors and their rows."""

from __future__ import annotations

import pytest

from modelserver.engine.tensors.datatypes import BYTES, pack
from modelserver.engine.tensors.tensor import Output, Tensor, TensorSpec, check_data, check_form, elements
from modelserver.errors import BadRequest


def test_rows_of_numbers_are_views() -> None:
    """Each has its share of the bytes, which are not copied."""
    data = memoryview(bytearray(range(12)))
    tensor = Tensor("x", "UINT16", (3, 2), data)

    rows = tensor.rows()
    data[0] = 99
    assert ([bytes(row)[0] for row in rows], tensor.trailing) == ([99, 4, 8], (2,))
    assert Tensor("x", "UINT16", (0, 2), memoryview(b"")).rows() == []


def test_rows_of_bytes_end_where_their_elements_do() -> None:
    """Elements of different lengths stay in their rows."""
    texts = [b"a", b"", b"ccc", b"dd"]
    rows = Tensor("x", BYTES, (2, 2), memoryview(pack(BYTES, texts))).rows()

    assert [bytes(row) for row in rows] == [pack(BYTES, texts[:2]), pack(BYTES, texts[2:])]


def test_an_output_may_lie_in_pieces() -> None:
    """Its bytes are the pieces one behind the other."""
    output = Output("y", "UINT8", (3,), [b"ab", b"c"])

    assert (output.size, bytes(output.data)) == (3, b"abc")


@pytest.mark.parametrize(
    ("datatype", "shape", "told"),
    [
        ("FP8", (1,), "unknown datatype 'FP8'"),
        ("FP32", (1,) * 1000, "has 1000 sizes"),
        ("FP32", (2, -1), "has a negative size"),
        ("FP32", (1 << 40, 1 << 40), "more elements than fit in a body"),
        ("FP32", (0, 1 << 62), "too large for a tensor without elements"),
    ],
)
def test_forms_that_no_tensor_has(datatype: str, shape: tuple[int, ...], told: str) -> None:
    """They are refused with the tensor's name."""
    with pytest.raises(BadRequest, match=rf"output 'y': .*{told}"):
        check_form("y", datatype, shape, "output")


def test_elements_are_counted() -> None:
    """Those of a scalar too; the data must be theirs."""
    assert (elements(()), check_form("x", "INT8", (2, 3))) == (1, 6)
    check_data("x", "INT8", 6, memoryview(bytes(6)))
    with pytest.raises(BadRequest, match="input 'x'"):
        check_data("x", "INT8", 6, memoryview(bytes(5)))


def test_a_declared_shape_may_leave_sizes_open() -> None:
    """-1 is any size."""
    spec = TensorSpec("x", "FP32", (-1, 3))

    assert [spec.fits(shape) for shape in ((7, 3), (1, 4), (3,))] == [True, False, False]
