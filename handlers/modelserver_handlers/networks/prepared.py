"""The weights of a fused network in oneDNN's own layout: made once, kept in a file, mapped by every worker.

oneDNN rearranges a dense weight at every call; one in its own layout is used directly. Such a weight can
also be made from bytes that are mapped from a file, so that all workers of a model share one copy.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import fx, nn

from modelserver_handlers.networks import cache
from modelserver_handlers.networks.fusion import Fused, Geometry, ValueShapes, fused_convolution
from modelserver_handlers.networks.precision import half, statistics_of

_LAYOUT_MKLDNN = 3  # c10::Layout


def pack(weight: torch.Tensor, geometry: Geometry, input_shape: Sequence[int]) -> torch.Tensor:
    """A dense weight (out x in/groups x height x width) in oneDNN's layout for inputs of about that shape."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight.contiguous(memory_format=torch.channels_last), *geometry, list(input_shape)
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


logger = logging.getLogger(__name__)

FORMAT = 2
FOLDER = "weights"


class GraphPlan(Protocol):
    """What a fused network is made of: tensors, numbers and names, which a file can keep."""

    def key(self) -> str:
        """Differs if what is made would."""

    def make(self) -> dict[str, Any]:
        """All that the network needs besides the plain one."""

    def filled(self, content: Mapping[str, Any]) -> fx.GraphModule:
        """The network with what was made, now or by another process."""


def ready_graph(plan: GraphPlan, check: Callable[[fx.GraphModule], None]) -> fx.GraphModule:
    """The fused network with its weights.

    They are read from the cache, or written to it after ``check``, which raises for a network that is not as
    good. Without a cache, each process has its own.
    """
    folder = cache.cache_folder(FOLDER) if can_share() else None
    if folder is None:
        graph = plan.filled(plan.make())
        check(graph)
        return graph
    path = folder / f"{plan.key()}.pt"
    with cache.locked(path.with_suffix(".lock")):
        stored = cache.read(path)
        if stored is not None:
            return plan.filled(stored)
        graph = plan.filled(made := plan.make())
        check(graph)
        try:
            cache.write(path, made)
        except (OSError, RuntimeError) as error:
            logger.warning("The optimised weights are not shared, they could not be written: %s", error)
            return graph
        cache.prune(folder)
        return plan.filled(cache.read(path) or made)


@dataclass(frozen=True, slots=True)
class FusedPlan:
    """A fused network of a model, the shape of a typical batch, and the precision: fp32 or bf16."""

    model: nn.Module
    fused: Fused
    batch_shape: tuple[int, ...]
    precision: str

    def key(self) -> str:
        """A key that differs for another network, other weights, or another platform."""
        return key_of(self.fused, self.model, self.precision, self.batch_shape)

    def make(self) -> dict[str, Any]:
        """The convolutions' weights in oneDNN's layout, and other layers' tensors if they differ."""
        graph, shapes = self.fused.graph, self._input_shapes()
        convolutions = {}
        for name, source in self.fused.sources.items():
            weight, bias = source.fold()
            geometry = fused_convolution(graph, name).geometry
            convolutions[name] = {
                "weight": storable(pack(self._convert(weight), geometry, shapes[name])),
                "bias": None if bias is None else self._convert(bias).clone(),
            }
        others = {} if self.precision == "fp32" else _own_tensors(graph)
        rest = {name: half(tensor.detach()) for name, tensor in others.items()}
        return {"convolutions": convolutions, "rest": rest}

    def _input_shapes(self) -> dict[str, list[int]]:
        """The shape of each fused convolution's input, known after running the network with dense weights."""
        graph, (rows, *shape) = self.fused.graph, self.batch_shape
        self.fused.use_dense_weights()
        values = ValueShapes(graph)
        values.run(torch.zeros(1, *shape).contiguous(memory_format=torch.channels_last))
        nodes = [node for node in graph.graph.nodes if node.target in self.fused.sources]
        return {node.target: [rows, *values.shapes[node.args[0].name]] for node in nodes}

    def filled(self, content: Mapping[str, Any]) -> fx.GraphModule:
        """The graph with these tensors; the plain network's own layers stay as they are."""
        graph = self.fused.graph
        if self.precision != "fp32":
            own = _own_tensors(graph)
            replaced = {id(own[name]): _like(own[name], tensor) for name, tensor in content["rest"].items()}
            graph = copy.deepcopy(graph, replaced)
        for name, parts in content["convolutions"].items():
            weight = parts["weight"]
            fused_convolution(graph, name).put(restored(weight), parts["bias"], owner=weight)
        return graph

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        converted: torch.Tensor = half(tensor) if self.precision == "bf16" else tensor
        return converted


def key_of(fused: Fused, model: nn.Module, *more: object) -> str:
    """The key of what is made of a network."""
    graph = fused.graph
    outline = f"{graph.code}\n{graph}\n{model}"
    return cache.fingerprint(outline, model.state_dict(), FORMAT, *cache.platform(), *more)


def storable(weight: torch.Tensor) -> Any:
    """A weight in oneDNN's layout, as a file can keep it if this torch can share it."""
    return to_bytes(weight) if can_share() else weight


def restored(weight: Any) -> torch.Tensor:
    """The weight, in memory that ``weight`` owns."""
    return from_bytes(weight) if isinstance(weight, dict) else weight


def _own_tensors(graph: fx.GraphModule) -> dict[str, torch.Tensor]:
    statistics = statistics_of(graph)
    named = (*graph.named_parameters(), *graph.named_buffers())
    return {name: tensor for name, tensor in named if id(tensor) not in statistics}


def _like(original: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(tensor, requires_grad=False) if isinstance(original, nn.Parameter) else tensor
