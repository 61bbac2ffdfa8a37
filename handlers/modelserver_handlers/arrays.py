"""Tensors of torch and arrays of numpy, from bytes in the form of the Open Inference Protocol and back.

Importing this imports neither torch nor numpy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelserver.engine.tensors.datatypes import BYTES, TensorError, pack

if TYPE_CHECKING:
    from modelserver.engine.tensors.rows import Form

_TORCH = {
    "BOOL": "bool",
    **{f"{sign.upper()}INT{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
_DATATYPES = {name: datatype for datatype, name in _TORCH.items()}
_BRAIN_FLOATS = "modelserver_handlers.brain_floats"


def is_tensor(value: Any) -> bool:
    """Whether it is one of torch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Whether it is a tensor of torch, or an array or a scalar of numpy."""
    numpy = sys.modules.get("numpy")
    return is_tensor(value) or (numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)))


def stack(form: Form, sizes: Sequence[int], count: int, rows: memoryview) -> dict[str, Any]:
    """The ``count`` rows of each input of this form, stacked by torch if the handler has imported it.

    ``sizes`` are the bytes of a row of each. Raises TensorError if torch has no such datatype.
    """
    return (_stack_torch if "torch" in sys.modules else _stack_numpy)(form, sizes, count, rows)


def row_of(column: Any, row: int) -> Any:
    """A row of a stack; keeps a numpy scalar an array, or it would lose its BF16 mark."""
    return column[row] if column.ndim > 1 or not _is_brain(column) else column[row, ...]


def datatype_of(dtype: Any) -> str | None:
    """The protocol's name of a datatype of torch or numpy, if it has one."""
    return _DATATYPES.get(str(dtype).removeprefix("torch."))


def torch_type(datatype: str) -> Any:
    """torch's type for the protocol's name. Raises TensorError if this torch is too old for it."""
    torch: Any = sys.modules["torch"]
    if not hasattr(torch, _TORCH[datatype]):
        raise TensorError(f"tensors of {datatype} need torch 2.3 or newer, not {torch.__version__}")
    return getattr(torch, _TORCH[datatype])


def encode(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Datatype, shape and bytes of a tensor or array. Raises TensorError if it has no datatype."""
    return _of_torch(value) if is_tensor(value) else _of_numpy(value)


def _stack_torch(form: Form, sizes: Sequence[int], count: int, rows: memoryview) -> dict[str, Any]:
    torch: Any = sys.modules["torch"]
    kinds = [torch_type(each.datatype) for each in form.inputs]
    # A copy, as the frame owns the bytes, and the handler may keep its tensors or write to them.
    buffer = bytearray(rows)
    whole = torch.frombuffer(buffer, dtype=torch.uint8) if buffer else torch.empty(0, dtype=torch.uint8)
    whole = whole.view(count, sum(sizes))
    tensors, begin = {}, 0
    for each, kind, size in zip(form.inputs, kinds, sizes, strict=True):
        # Several inputs are side by side in each row; one needs no change.
        raw = whole[:, begin : begin + size].contiguous().view(-1)
        values = raw != 0 if kind is torch.bool else raw.view(kind)
        tensors[each.name] = values.view(count, *each.shape)
        begin += size
    return tensors


def _stack_numpy(form: Form, sizes: Sequence[int], count: int, rows: memoryview) -> dict[str, Any]:
    numpy: Any = importlib.import_module("numpy")
    whole = numpy.frombuffer(bytes(rows), numpy.uint8).reshape(count, sum(sizes))
    tensors, begin = {}, 0
    for each, size in zip(form.inputs, sizes, strict=True):
        raw = numpy.ascontiguousarray(whole[:, begin : begin + size]).reshape(-1)
        if each.datatype == "BF16" and "ml_dtypes" in sys.modules:
            values = raw.view(sys.modules["ml_dtypes"].bfloat16)
        elif each.datatype == "BF16":
            values = importlib.import_module(_BRAIN_FLOATS).widened(raw)
        elif each.datatype == "BOOL":
            values = raw != 0
        else:
            values = raw.view(numpy.dtype(_TORCH[each.datatype]).newbyteorder("<"))
        tensors[each.name] = values.reshape(count, *each.shape)
        # Read-only, as rows must be unchanged for a retry.
        tensors[each.name].flags.writeable = False
        begin += size
    return tensors


def _is_brain(value: Any) -> bool:
    """Whether ``value`` was received as BF16, for which numpy has no type."""
    brains = sys.modules.get(_BRAIN_FLOATS)
    return brains is not None and isinstance(value, brains.BrainFloats) and value.unchanged


def _of_torch(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    torch: Any = sys.modules["torch"]
    datatype = datatype_of(value.dtype)
    if datatype is None:
        raise TensorError(f"tensors of {value.dtype} have no datatype in the protocol")
    flat = value.detach().cpu().contiguous().reshape(-1)
    return datatype, tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()


def _of_numpy(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    numpy: Any = sys.modules["numpy"]
    if _is_brain(value):
        return "BF16", value.shape, sys.modules[_BRAIN_FLOATS].narrowed(value)
    array = numpy.asarray(value)
    if array.dtype.kind in "SUO":
        texts = [each.encode() if isinstance(each, str) else each for each in array.reshape(-1).tolist()]
        if not all(isinstance(each, bytes) for each in texts):
            raise TensorError("an array of objects may hold text and bytes only")
        return BYTES, array.shape, pack(BYTES, texts)
    datatype = datatype_of(array.dtype.name)
    if datatype is None:
        raise TensorError(f"arrays of {array.dtype} have no datatype in the protocol")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return datatype, array.shape, array.tobytes()
