"""Datatypes of the Open Inference Protocol: numpy is the judge of their bytes."""

import math

import msgspec
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.tensors import datatypes

NUMPY = {
    "BOOL": "?",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


def elements_of(datatype):
    """Elements that the type can hold exactly."""
    if datatype == "BOOL":
        return st.booleans()
    if datatype == datatypes.BYTES:
        return st.binary(max_size=20)
    if datatypes.DATATYPES[datatype].json_type is int:
        limits = numpy.iinfo(NUMPY[datatype])
        return st.integers(int(limits.min), int(limits.max))
    if datatype == "BF16":
        return st.integers(-256, 256).map(float)
    return st.floats(width=datatypes.DATATYPES[datatype].width * 8, allow_nan=False)


typed = st.sampled_from([*datatypes.DATATYPES, datatypes.BYTES]).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(elements_of(name), max_size=30))
)


@given(typed)
def test_elements_survive(tensor):
    datatype, values = tensor
    data = memoryview(datatypes.pack(datatype, values))
    datatypes.check_size(datatype, len(values), data)

    assert datatypes.unpack(datatype, data) == values


@given(typed.filter(lambda tensor: tensor[0] in NUMPY))
def test_bytes_are_those_of_numpy(tensor):
    datatype, values = tensor
    assert datatypes.pack(datatype, values) == numpy.array(values, NUMPY[datatype]).tobytes()


@given(st.lists(st.floats(width=32), max_size=30))
def test_bfloat16_is_that_of_torch(values):
    expected = torch.tensor(values, dtype=torch.float32).bfloat16()
    ours = datatypes.unpack("BF16", memoryview(datatypes.pack("BF16", values)))

    assert len(ours) == len(values)
    for one, other in zip(ours, expected.float().tolist(), strict=True):
        assert one == other or (math.isnan(one) and math.isnan(other))


@given(typed.filter(lambda tensor: tensor[0] != datatypes.BYTES))
def test_json_may_be_flat_or_nested(tensor):
    datatype, values = tensor
    finite = [value for value in values if math.isfinite(value)]
    nested = [[finite[:3], []], *([value] for value in finite[3:])]

    assert datatypes.from_json(datatype, msgspec.json.encode(finite)) == finite
    assert datatypes.from_json(datatype, msgspec.json.encode(nested)) == finite


@pytest.mark.parametrize(
    ("datatype", "values"),
    [("UINT8", [256]), ("UINT8", [-1]), ("INT64", [1 << 63]), ("UINT64", [1 << 64]), ("FP16", [1e6])],
)
def test_values_out_of_range_are_refused(datatype, values):
    with pytest.raises(datatypes.TensorError, match=f"out of the range of {datatype}"):
        datatypes.pack(datatype, values)


@pytest.mark.parametrize(
    ("datatype", "text", "what"),
    [
        ("INT32", b"[1, 2.5]", "INT32 data contains a number"),
        ("INT32", b"[1.0]", "a number"),
        ("INT32", b"[true]", "a boolean"),
        ("BOOL", b"[1]", "an integer"),
        ("FP32", b'["1"]', "a string"),
        ("FP32", b"[null]", "null"),
        ("FP32", b'[[{"a": 1}]]', "an object"),
        ("FP32", b"3", "not a list"),
        ("FP32", b"{}", "not a list"),
        ("BYTES", b"[1]", "an integer"),
        ("FP32", b"[NaN]", "not valid JSON"),
        ("FP64", b"[1e400]", "not valid JSON"),
        ("BYTES", b'["\xff"]', "not valid JSON: .*(?i:utf-8)"),
        ("BYTES", b'[["a"], ["\xff"]]', "not valid JSON: .*(?i:utf-8)"),
        ("INT32", b'["\xff"]', "not valid JSON: .*(?i:utf-8)"),
    ],
)
def test_wrong_elements_are_refused(datatype, text, what):
    with pytest.raises(datatypes.TensorError, match=what):
        datatypes.from_json(datatype, text)


def test_deep_nesting_is_refused():
    """Lists nested without end are refused, and end nothing (F3)."""
    with pytest.raises(datatypes.TensorError):
        datatypes.from_json("FP32", b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize("data", [b"\x01", b"\x05\0\0\0abc", b"\xff\xff\xff\xffabc", b"\x01\0\0\0a\x02\0\0"])
def test_lengths_that_lie_are_refused(data):
    with pytest.raises(datatypes.TensorError):
        datatypes.split_elements(memoryview(data))


@pytest.mark.parametrize(
    ("datatype", "count", "size"), [("FP32", 2, 7), ("FP32", 2, 12), ("BYTES", 2, 4), ("BOOL", 0, 1)]
)
def test_sizes_are_checked(datatype, count, size):
    with pytest.raises(datatypes.TensorError, match="its shape"):
        datatypes.check_size(datatype, count, memoryview(bytes(size)))
