"""Requests of the Open Inference Protocol as nobody should send them, and some that are right."""

import json
from typing import Any

from hypothesis import strategies as st

from modelserver.engine.tensors.datatypes import NAMES
from modelserver.ext.grpc.messages import message

_TEXTS = st.text(max_size=4)
_NAMES = st.sampled_from(["x", "x", "y", ""]) | _TEXTS
_DATATYPES = st.sampled_from([*NAMES, "FLOAT", "fp32", ""]) | _TEXTS
_BOUNDS = [1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1]
_SIZES = st.integers(-2, 4) | st.sampled_from([*_BOUNDS, -(1 << 63)])
_SHAPES = (
    st.lists(st.integers(0, 2), max_size=3) | st.lists(_SIZES, max_size=6) | st.lists(st.just(1), max_size=70)
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([1 << 64, 10**40, 1e300, 1.5, float("nan"), float("inf")])
    | _TEXTS
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=2),
    max_leaves=6,
)
_PARAMETERS = st.dictionaries(
    st.sampled_from(["binary_data_size", "binary_data", "binary_data_output", "timeout", "sequence_id", "p"]),
    st.sampled_from([0, 4, 8, True, False, -1, "1", 1 << 64, None, 2.5]),
    max_size=2,
)


def _object(needed: dict[str, Any], other: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object that mostly has the required fields; any of them may be something else."""
    fields = {name: st.one_of(value, value, value, _ANYTHING) for name, value in {**needed, **other}.items()}
    gone = st.sets(st.sampled_from(sorted(needed)), max_size=1)
    first, second = ({name: fields[name] for name in names} for names in (needed, other))
    full = st.fixed_dictionaries(first, optional=second)
    return st.one_of(full, full, st.builds(_without, full, gone))


def _without(result: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in names}


_VALUES = st.lists(st.integers(0, 1), max_size=4) | st.lists(st.sampled_from(["a", "é", ""]), max_size=4)
_INPUT = _object(
    {"name": _NAMES, "shape": _SHAPES, "datatype": _DATATYPES}, {"data": _VALUES, "parameters": _PARAMETERS}
)
_OUTPUT = _object({"name": st.just("output_0") | _NAMES}, {"parameters": _PARAMETERS})
_REQUEST = _object(
    {"inputs": st.lists(_INPUT, max_size=2)},
    {"id": _TEXTS, "parameters": _PARAMETERS, "outputs": st.lists(_OUTPUT, max_size=2)},
)


@st.composite
def _good(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """One that is right, and its binary data; they are too seldom among the others."""
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    count = 1
    for size in shape:
        count *= size
    datatype = draw(st.sampled_from(["UINT8", "FP32", "BYTES"]))
    field: dict[str, Any] = {"name": "x", "shape": shape, "datatype": datatype}
    if draw(st.booleans()) and datatype != "BYTES":
        size = count * (4 if datatype == "FP32" else 1)
        data = draw(st.binary(min_size=size, max_size=size))
        return {"inputs": [{**field, "parameters": {"binary_data_size": len(data)}}]}, data
    field["data"] = ["é" if datatype == "BYTES" else 1] * count
    return {"inputs": [field]}, b""


def _cut(content: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    """The bytes with some pieces replaced."""
    for place, length, piece in cuts:
        at = place % (len(content) + 1)
        content = content[:at] + piece + content[at + length :]
    return content


_CUTS = st.just([]) | st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=3
)


@st.composite
def odd_bodies(draw: st.DrawFn) -> tuple[bytes, str | None]:
    """A REST body, and the header with the length of its JSON, if there is one."""
    fields, data = draw(_good() | st.tuples(_REQUEST, st.binary(max_size=12)))
    text = json.dumps(fields, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    right = str(len(text)) if data else None
    wrong = st.sampled_from([None, "0", "-1", "9999999", "", "1e3", "٣"])
    header = draw(st.just(right) | st.just(right) | wrong)
    # httpx sends what is ASCII only.
    known = header if header is None or header.isascii() else None
    return _cut(text + data, draw(_CUTS)), known


_CHOICES = st.fixed_dictionaries({}) | st.sampled_from(
    [
        {"int64_param": 0},
        {"int64_param": -5},
        {"bool_param": True},
        {"string_param": "s"},
        {"double_param": 0.5},
        {"double_param": float("nan")},
        {"uint64_param": (1 << 64) - 1},
    ]
)
_GRPC_PARAMETERS = st.dictionaries(
    st.sampled_from(["timeout", "sequence_id", "p", "binary_data_size"]), _CHOICES, max_size=2
)
_CONTENTS = st.fixed_dictionaries(
    {},
    optional={
        "bool_contents": st.lists(st.booleans(), max_size=3),
        "int_contents": st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=3),
        "uint64_contents": st.lists(st.integers(0, (1 << 64) - 1), max_size=3),
        "fp32_contents": st.lists(st.floats(width=32), max_size=3),
        "bytes_contents": st.lists(st.binary(max_size=3), max_size=3),
    },
)
_TENSOR = st.fixed_dictionaries(
    {"name": _NAMES, "datatype": _DATATYPES, "shape": _SHAPES},
    optional={"contents": _CONTENTS, "parameters": _GRPC_PARAMETERS},
)


@st.composite
def _right(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(0, 3))
    tensor = {"name": "x", "datatype": "FP32", "shape": [count]}
    if draw(st.booleans()):
        return {"inputs": [tensor], "raw_input_contents": [bytes(4 * count)]}
    return {"inputs": [{**tensor, "contents": {"fp32_contents": [0.5] * count}}]}


@st.composite
def odd_messages(draw: st.DrawFn, model: str) -> bytes:
    """A ModelInferRequest, or what was one."""
    wrong = st.fixed_dictionaries(
        {"inputs": st.lists(_TENSOR, max_size=2)},
        optional={
            "outputs": st.lists(
                st.fixed_dictionaries({"name": _NAMES}, optional={"parameters": _GRPC_PARAMETERS}), max_size=2
            ),
            "parameters": _GRPC_PARAMETERS,
            "raw_input_contents": st.lists(st.binary(max_size=9), max_size=2),
            "id": _TEXTS,
        },
    )
    made = message("inference.ModelInferRequest")(model_name=model, **draw(_right() | wrong))
    encoded: bytes = made.SerializeToString()
    return _cut(encoded, draw(_CUTS))
