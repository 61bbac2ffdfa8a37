from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy
import numpy.typing
import pydantic
import pytest
import torch

from modelserver_handlers.errors import BadInput
from modelserver_handlers.typed.reading import reader_of


class Point(msgspec.Struct):
    x: int
    note: str = ""
    raw: bytes = b""


class Model(pydantic.BaseModel):
    x: int
    note: str = ""


@dataclass
class Data:
    body: int


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    numpy.save(buffer, array)
    return buffer.getvalue()


def encoded(text: str) -> bytearray:
    return bytearray(text, "utf-8")


@pytest.mark.parametrize(
    ("annotation", "row", "value"),
    [
        (None, {"body": 21}, 21),
        (None, {"body": encoded("[1, 2]")}, [1, 2]),
        (None, {"body": encoded("no json")}, b"no json"),
        (None, {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (Any, {"data": "text"}, "text"),
        (str, {"body": encoded("größer")}, "größer"),
        (str, {"data": "text"}, "text"),
        (bytes, {"body": encoded("abc")}, b"abc"),
        (bytes, {"body": "abc"}, b"abc"),
        (bytes, {"b64": "YWJj"}, b"abc"),
        (int, {"body": 3}, 3),
        (float, {"body": encoded("3")}, 3.0),
        (int, {"data": numpy.array(3)}, 3),
        (list[list[float]], {"data": numpy.array([[1.0], [2.0]])}, [[1.0], [2.0]]),
        (dict, {"body": {"a": 1}}, {"a": 1}),
        (dict[str, int], {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (Point, {"body": {"x": 1}}, Point(1)),
        (Point, {"x": 1, "note": "n"}, Point(1, "n")),
        (Point, {"body": encoded('{"x": 1}')}, Point(1)),
        (Point, {"data": '{"x": 1}'}, Point(1)),
        (Point, {"x": encoded("7"), "note": encoded("8"), "raw": bytearray(b"\xff")}, Point(7, "8", b"\xff")),
        (Point, {"x": numpy.array(5), "note": "n"}, Point(5, "n")),
        (Data, {"body": 4}, Data(4)),
        (Model, {"body": {"x": 1}}, Model(x=1)),
        (Model, {"body": encoded('{"x": 1}')}, Model(x=1)),
        (Model, {"x": encoded("7"), "note": encoded("8")}, Model(x=7, note="8")),
        (int | None, {"body": None}, None),
    ],
)
def test_rows_become_the_annotated_type(annotation, row, value):
    result = reader_of(annotation)(row)

    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("annotation", "row", "values", "dtype"),
    [
        (numpy.ndarray, {"body": [1, 2]}, [1, 2], "int64"),
        (numpy.ndarray, {"body": encoded("[1.5]")}, [1.5], "float64"),
        (numpy.ndarray, {"data": torch.ones(2)}, [1, 1], "float32"),
        (numpy.ndarray, {"body": bytearray(npy(numpy.arange(3, dtype="int16")))}, [0, 1, 2], "int16"),
        (numpy.typing.NDArray[numpy.float32], {"body": [1, 2]}, [1, 2], "float32"),
        (numpy.typing.NDArray[numpy.uint8], {"body": [0, 255]}, [0, 255], "uint8"),
        (numpy.typing.NDArray[numpy.float32], {"data": numpy.array([2.0])}, [2], "float32"),
        (numpy.typing.NDArray[Any], {"body": 3}, 3, "int64"),
    ],
)
def test_rows_become_arrays(annotation, row, values, dtype):
    array = reader_of(annotation)(row)

    assert isinstance(array, numpy.ndarray)
    assert (array.tolist(), array.dtype.name) == (values, dtype)


def test_rows_become_tensors():
    read, row = reader_of(torch.Tensor), torch.ones(2)
    array = numpy.ones(2)
    array.flags.writeable = False

    assert read({"data": row}) is row
    assert read({"body": encoded("[[1.0], [2.0]]")}).shape == (2, 1)
    assert read({"data": array}).add_(1).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("annotation", "row", "message"),
    [
        (str, {"body": bytearray(b"\xff")}, "UTF-8"),
        (str, {"body": 3}, "a text is needed, got 3"),
        (bytes, {"body": [1]}, r"bytes are needed, got \[1\]"),
        (bytes, {"b64": "?"}, "b64 is not base64"),
        (int, {"body": "3"}, "Expected `int`, got `str`"),
        (int, {"body": encoded("3 x")}, "JSON is needed"),
        (Point, {"body": {"x": "a"}}, r"Expected `int`, got `str` - at `\$.x`"),
        (Point, {'{"x": 1}': encoded("")}, "application/json"),
        (Model, {"body": {"x": "a"}}, "^x: .*integer"),
        (Model, {"body": encoded("[")}, "JSON"),
        (numpy.ndarray, {"body": "x"}, "numbers are needed, got 'x'"),
        (numpy.ndarray, {"body": [[1], [1, 2]]}, "different lengths"),
        (numpy.ndarray, {"body": bytearray(b"\x93NUMPYx")}, "npy file cannot be read"),
        (numpy.ndarray, {"body": encoded("x" * 100)}, "as JSON or as a .npy file"),
        (numpy.typing.NDArray[numpy.uint8], {"body": [256]}, "from 0 to 255"),
        (numpy.typing.NDArray[numpy.int64], {"body": [1.5]}, "numbers of int64 are needed, got float64"),
        (torch.Tensor, {"body": "x"}, "numbers are needed, got 'x'"),
        (torch.Tensor, {"body": [[1], [1, 2]]}, "numbers are needed: "),
    ],
)
def test_unreadable_rows_are_refused(annotation, row, message):
    with pytest.raises(BadInput, match=message):
        reader_of(annotation)(row)
