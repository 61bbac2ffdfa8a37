from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy
import numpy.typing
import pydantic
import pytest
import torch

from modelserver_handlers.typed.signature import BINARY, JSON, TEXT, described, element_of


class Inner(msgspec.Struct):
    name: str


class Outer(msgspec.Struct):
    inner: Inner


class Part(pydantic.BaseModel):
    name: str


class Model(pydantic.BaseModel):
    inner: Part | None = None
    age: int


@pytest.mark.parametrize(
    ("annotation", "datatype", "shape", "media"),
    [
        (str, "BYTES", (-1,), TEXT),
        (bytes, "BYTES", (-1,), BINARY),
        (dict, "BYTES", (-1,), JSON),
        (int, "INT64", (-1,), JSON),
        (bool, "BOOL", (-1,), JSON),
        (list[list[float]], "FP64", (-1, -1, -1), JSON),
        (list[str], "BYTES", (-1,), JSON),
        (numpy.ndarray, "FP32", (-1, -1), JSON),
        (numpy.typing.NDArray[numpy.uint8], "UINT8", (-1, -1), JSON),
        (numpy.typing.NDArray[numpy.float16], "FP16", (-1, -1), JSON),
        (torch.Tensor, "FP32", (-1, -1), JSON),
        (Outer, "BYTES", (-1,), JSON),
    ],
)
def test_annotations_are_one_tensor(annotation, datatype, shape, media):
    side = described(annotation, "name")
    assert (side.tensors, side.media) == ((("name", datatype, shape),), media)


def test_schemas_have_names_of_their_own():
    side, other = described(Outer, "x"), described(Model, "x")

    assert side.schema == {"$ref": "#/components/schemas/handler.Outer"}
    assert side.schemas["handler.Outer"]["properties"] == {
        "inner": {"$ref": "#/components/schemas/handler.Inner"}
    }
    assert set(side.schemas) == {"handler.Inner", "handler.Outer"}
    assert other.schema["required"] == ["age"]
    assert "handler.Part" in other.schemas


@pytest.mark.parametrize("annotation", [None, Any, type(None)])
def test_nothing_is_known(annotation):
    assert described(annotation, "x").tensors == ()


@pytest.mark.parametrize(
    ("annotation", "row", "whole"),
    [
        (None, None, False),
        (list, None, False),
        (list[str], str, False),
        (Sequence[int], int, False),
        (torch.Tensor, torch.Tensor, True),
        (numpy.ndarray, numpy.ndarray, True),
        (list[numpy.ndarray], numpy.ndarray, False),
    ],
)
def test_lists_have_rows_of_a_type(annotation, row, whole):
    assert element_of(annotation) == (row, whole)


def test_a_batch_is_a_list():
    with pytest.raises(TypeError, match=r"list\[str\] is needed"):
        element_of(str)
