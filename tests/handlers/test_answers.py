import base64
import dataclasses
import datetime
import enum
import io
import json
import math
import uuid

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modelserver_handlers.answers import (
    OCTETS,
    TEXT,
    Unserializable,
    dump_indented,
    encode_body,
    encode_instance,
)

FLOATS = st.floats() | st.floats(-1e-3, 1e-3) | st.floats(1e14, 1e18)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(
            st.text() | st.integers() | st.booleans() | st.none() | st.floats(), inner, max_size=4
        )
    ),
    max_leaves=12,
)


class Colour(enum.Enum):
    RED = "red"
    DARK = "dark e"


@dataclasses.dataclass
class Point:
    x: int


class Name(str):
    __slots__ = ()


# -- /predictions (reference 7.4)


@given(VALUES)
def test_body_is_what_the_standard_encoder_writes(value):
    assert dump_indented(value) == json.dumps(value, indent=2).encode()


@pytest.mark.parametrize(
    ("value", "content", "content_type"),
    [
        (b"\xff\x00", b"\xff\x00", OCTETS),
        (bytearray(b"raw"), b"raw", OCTETS),
        ("grün", "grün".encode(), TEXT),
        ("", b"", TEXT),
        ("\udcff", b"\xff", TEXT),
        (Name("a"), b"a", TEXT),
        (5, b"5", "application/json"),
        (None, b"null", "application/json"),
        (True, b"true", "application/json"),
        ((1, 2), b"[\n  1,\n  2\n]", "application/json"),
        (math.nan, b"NaN", "application/json"),
    ],
)
def test_bytes_and_text_go_out_as_they_are_others_as_json(value, content, content_type):
    """Nothing is added to bytes and strings; their types are what no browser takes for a page or a script."""
    encoded = encode_body(value)

    assert encoded == (content, content_type)
    assert type(encoded[0]) is bytes


def test_tensor_is_saved():
    tensor = torch.arange(6).reshape(2, 3)

    body, content_type = encode_body(tensor)

    assert content_type == OCTETS
    assert torch.equal(torch.load(io.BytesIO(body), weights_only=True), tensor)


def circular():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(object(), id="object"),
        pytest.param({1, 2}, id="set"),
        pytest.param({"a": b"bytes inside"}, id="bytes inside"),
        pytest.param(np.float32(1.5), id="numpy scalar"),
        pytest.param(np.zeros(2), id="numpy array"),
        pytest.param({"a": torch.zeros(2)}, id="tensor inside"),
        pytest.param({(1, 2): 3}, id="tuple as a key"),
        pytest.param(Point(1), id="dataclass"),
        pytest.param({"e": Point(1)}, id="dataclass inside"),
        pytest.param(circular(), id="circular"),
        pytest.param("\ud800", id="lone surrogate"),
    ],
)
def test_values_without_a_form_are_unserializable(value):
    with pytest.raises(Unserializable):
        encode_body(value)


@pytest.mark.parametrize(
    "value", [Colour.RED, Colour.DARK, uuid.UUID(int=0), uuid.UUID(int=0xE << 120), datetime.date(2024, 1, 2)]
)
@pytest.mark.parametrize("wrapped", ["{}", "null {}"])
def test_values_beyond_json_do_not_depend_on_their_letters(value, wrapped):
    content, _ = encode_body([value, wrapped])

    text = value.value if isinstance(value, enum.Enum) else str(value)
    assert json.loads(content) == [text, wrapped]


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ({"a": [1, 2.5, None]}, b'{"a":[1,2.5,null]}'),
        ("grün", '"grün"'.encode()),
        (b"text", b'"text"'),
        (bytearray(b"text"), b'"text"'),
        (b"\xff\xfe", json.dumps(base64.b64encode(b"\xff\xfe").decode()).encode()),
        ({1: 2}, b'{"1":2}'),
        (math.nan, b"null"),
        (math.inf, b"null"),
        (12345678901234567890123, b"12345678901234567890123"),
        ((1, 2), b"[1,2]"),
        ("\ud800", b'"\\ud800"'),
        (torch.tensor([1.0, math.nan]), b"[1.0,null]"),
        (np.float32(1.5), b"1.5"),
        ([np.int64(3)], b"[3]"),
    ],
)
def test_prediction_is_one_json_value(value, content):
    """A V1 prediction is compact, valid JSON; bytes become text, NaN becomes null (F4)."""
    assert encode_instance(value) == content


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),
        torch.tensor([[1, 3], [2, 4]], dtype=torch.bfloat16).T,
        np.array([[1, 2], [3, 4]]),
        np.asfortranarray([[1, 2], [3, 4]]),
        [torch.tensor([1.0, 2.0]), np.array([3, 4])],
        np.array([[1, 0, 2, 0], [3, 0, 4, 0]], dtype=">i4")[:, ::2],
    ],
    ids=["tensor", "bfloat16 view", "array", "column order", "inside a list", "strided big-endian"],
)
def test_tensors_and_arrays_are_lists(value):
    assert json.loads(encode_instance(value)) == [[1, 2], [3, 4]]
    assert json.loads(encode_instance({"scores": value})) == {"scores": [[1, 2], [3, 4]]}


@pytest.mark.parametrize("value", [object(), {1, 2}, circular(), [10**30, math.nan], {"a": b"x"}])
def test_prediction_without_a_json_form_is_unserializable(value):
    with pytest.raises(Unserializable):
        encode_instance(value)


@given(VALUES)
def test_predictions_are_always_valid_json(value):
    try:
        content = encode_instance(value)
    except Unserializable:
        return

    def refuse(constant):
        raise AssertionError(constant)

    json.loads(content, parse_constant=refuse)
