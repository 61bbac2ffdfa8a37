"""Weights in oneDNN's own layout, as tensors and as bytes that a file can hold.

oneDNN rearranges a dense weight at every call; one in its own layout is used directly. Such a weight can
also be made from bytes that are mapped from a file, so that all workers of a model share one copy.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver_handlers.networks.fusion import Geometry

_LAYOUT_MKLDNN = 3  # c10::Layout


def pack(weight: torch.Tensor, geometry: Geometry, input_shape: Sequence[int]) -> torch.Tensor:
    """A dense weight (out x in/groups x height x width) in oneDNN's layout for inputs of about that shape."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight.contiguous(memory_format=torch.channels_last), *geometry.arguments(), list(input_shape)
    )
    return packed


def to_bytes(weight: torch.Tensor) -> dict[str, Any]:
    """What :func:`from_bytes` needs: plain tensors, numbers and names."""
    size = torch.ops.mkldnn._nbytes(weight)
    content = bytearray(ctypes.string_at(torch.ops.mkldnn.data_ptr(weight), size))
    return {
        "content": torch.frombuffer(content, dtype=torch.uint8),
        "description": torch.ops.mkldnn._get_mkldnn_serialized_md(weight).clone(),
        "shape": list(weight.shape),
        "type": str(weight.dtype).removeprefix("torch."),
    }


def from_bytes(parts: dict[str, Any]) -> torch.Tensor:
    """The weight, in the memory of ``parts["content"]``, which the caller must keep alive.

    Raises RuntimeError if this torch cannot make one.
    """
    library = _library()
    shape, description = parts["shape"], bytes(parts["description"].numpy())
    dtype = getattr(library, f"aoti_torch_dtype_{parts['type']}")()
    handle = ctypes.c_void_p()
    failed = library.aoti_torch_create_tensor_from_blob_v2(
        ctypes.c_void_p(parts["content"].data_ptr()),
        ctypes.c_int64(len(shape)),
        (ctypes.c_int64 * len(shape))(*shape),
        (ctypes.c_int64 * len(shape))(),
        ctypes.c_int64(0),
        ctypes.c_int32(dtype),
        ctypes.c_int32(library.aoti_torch_device_type_cpu()),
        ctypes.c_int32(0),
        ctypes.byref(handle),
        ctypes.c_int32(_LAYOUT_MKLDNN),
        description,
        ctypes.c_int64(len(description)),
    )
    if failed:
        raise RuntimeError("torch could not make a weight of the bytes of a packed one")
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    tensor: torch.Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(
        new_capsule(handle, None, None)
    )
    return tensor


@functools.cache
def can_share() -> bool:
    """Whether this torch and this processor can make packed weights from bytes."""
    try:
        library = _library()
        operators = torch.ops.mkldnn
        return (
            hasattr(torch._C._aoti, "alloc_tensor_by_stealing_from_void_ptr")
            and hasattr(library, "aoti_torch_create_tensor_from_blob_v2")
            and all(hasattr(operators, name) for name in ("data_ptr", "_nbytes", "_get_mkldnn_serialized_md"))
        )
    except (AttributeError, OSError):
        return False


@functools.cache
def _library() -> Any:
    """torch's library, whose C interface for compiled models is kept stable from release to release."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
