"""Networks as exported files: what programs and ONNX graphs declare, and the rows that they are fixed to.

A network that was exported for a fixed number of rows computes a batch in parts of that number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks.modules import require_file
from modelserver_handlers.typed.handler import HandlerSignature
from modelserver_handlers.typed.signature import Described, datatype_named

_ROWS: Final = "_ms_fixed_rows"


def fixed_rows(shapes: Iterable[Sequence[Any]]) -> int | None:
    """The number of rows that all inputs of these shapes are fixed to; None if any number may come."""
    firsts = [next(iter(shape), None) for shape in shapes]
    first = firsts[0] if firsts else None
    is_fixed = isinstance(first, int) and first > 0
    return first if is_fixed and all(isinstance(each, int) and each == first for each in firsts) else None


def fixed_rows_of(network: Any) -> int | None:
    """The rows that a network computes at a time; None if any number."""
    rows = getattr(network, _ROWS, None)
    return rows if isinstance(rows, int) else None


def compute_in_parts(network: Any, rows: int) -> None:
    """Let a program, which takes exactly ``rows`` rows, take any number."""
    kind: Any = type(network)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return in_parts(partial(kind.__call__, self), rows, args, kwargs)

    # Not another forward: the program checks its inputs before that.
    own = type(kind.__name__, (kind,), {"__call__": call})
    network.__class__ = own
    setattr(network, _ROWS, rows)


def in_parts(run: Callable[..., Any], rows: int, args: Any, kwargs: Any) -> Any:
    """The outputs of ``run`` for all rows of its tensors, ``rows`` at a time; the last part is filled up.

    Raises ValueError if an output has no row for each row of input.
    """
    counts = {
        len(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()
    }
    count = counts.pop() if len(counts) == 1 else 0
    if count in (0, rows):
        return run(*args, **kwargs)
    outputs = []
    for first in range(0, count, rows):
        part_args, part_kwargs = tree_map(lambda leaf: _part(leaf, first, rows), (args, kwargs))  # noqa: B023
        outputs.append(run(*part_args, **part_kwargs))
    return tree_map(lambda *parts: _joined(parts, rows)[:count], *outputs)


def _part(leaf: Any, first: int, rows: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.dim():
        return leaf
    part = leaf[first : first + rows]
    missing = rows - len(part)
    return torch.cat([part, part[-1:].expand(missing, *part.shape[1:])]) if missing else part


def _joined(parts: Sequence[Any], rows: int) -> torch.Tensor:
    if not all(isinstance(part, torch.Tensor) and part.dim() and len(part) == rows for part in parts):
        raise ValueError(f"an output of the network has no row for each of the {rows} rows of its input")
    return torch.cat(list(parts))


ONNX_AVAILABLE = find_spec("onnxruntime") is not None


_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_INSTALL = "the installed one is for processors (pip uninstall onnxruntime; pip install onnxruntime-gpu)"
_REPAIR = "its message above names the library of CUDA or cuDNN that is missing or of another version"


def setup_ort_session(model_pt_path: str, map_location: str | None, device_id: int | None = None) -> Any:
    """The ``InferenceSession`` of an ONNX file, on GPU ``device_id`` where ``map_location`` is "cuda".

    Without ``device_id``, on the GPU that torch uses. It uses as many threads as torch would, unlike in
    TorchServe, where each worker uses all cores. Raises ModelLoadError without onnxruntime, for a file that
    is not an ONNX model, and if onnxruntime cannot use the GPU.
    """
    require_file(Path(model_pt_path))
    name = Path(model_pt_path).name
    if not ONNX_AVAILABLE:
        raise ModelLoadError(
            f"{name} needs onnxruntime, which is not installed: pip install onnxruntime (or onnxruntime-gpu)"
        )
    onnxruntime: Any = import_module("onnxruntime")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    on_gpu = map_location == "cuda"
    if on_gpu and _CUDA not in onnxruntime.get_available_providers():
        raise _unusable_gpu(name, _INSTALL)
    try:
        session = onnxruntime.InferenceSession(
            model_pt_path, sess_options=settings, providers=_providers(device_id) if on_gpu else [_CPU]
        )
    except Exception as error:  # the only common base of onnxruntime's own classes
        raise ModelLoadError(f"{name} is not an ONNX model that onnxruntime can run: {error}") from error
    if on_gpu and _CUDA not in session.get_providers():
        raise _unusable_gpu(name, _REPAIR)
    return session


def _unusable_gpu(name: str, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"onnxruntime cannot compute {name} on the worker's GPU: {why}."
        " deviceType: cpu in model-config.yaml keeps the model on the processor"
    )


def _providers(device_id: int | None) -> list[Any]:
    """CUDA's, without cuDNN's search among all algorithms: it would take seconds for each new batch size."""
    number = torch.cuda.current_device() if device_id is None else device_id
    return [(_CUDA, {"device_id": number, "cudnn_conv_algo_search": "HEURISTIC"}), _CPU]


class OnnxNetwork:
    """A session that is called like a network: tensors in, tensors out.

    One input tensor per input of the model, in order; the answer is a tensor, or a tuple of them where the
    model has several outputs. The session's own methods (``run``, ``get_inputs``) are there too. ``device``
    is the session's: on a GPU, tensors that are there stay there.
    """

    def __init__(self, session: Any, device: torch.device | None = None) -> None:
        self.session = session
        self._gpu = device if device is not None and device.type == "cuda" else None
        inputs = session.get_inputs()
        self._inputs = [(entry.name, _TYPES.get(entry.type)) for entry in inputs]
        self._ms_fixed_rows = fixed_rows(getattr(entry, "shape", ()) for entry in inputs)

    def row_shape(self) -> tuple[int, ...] | None:
        """The shape of a row of its only input, if that has floats and one shape; else None."""
        if len(self._inputs) != 1:
            return None
        ((_, kind),) = self._inputs
        shape = tuple(self.session.get_inputs()[0].shape[1:])
        known = all(isinstance(size, int) and size > 0 for size in shape)
        return shape if known and kind is not None and kind.is_floating_point else None

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The model's outputs for ``tensors``, on the device of the first one."""
        rows = self._ms_fixed_rows
        return self._compute(*tensors) if rows is None else in_parts(self._compute, rows, tensors, {})

    def _compute(self, *tensors: torch.Tensor) -> Any:
        if len(tensors) != len(self._inputs):
            names = ", ".join(name for name, _ in self._inputs)
            raise TypeError(f"the model takes {len(self._inputs)} inputs ({names}), got {len(tensors)}")
        feed = {
            name: tensor.detach().to(self._gpu or "cpu", dtype or tensor.dtype)
            for (name, dtype), tensor in zip(self._inputs, tensors, strict=True)
        }
        outputs = self._on_processor(feed) if self._gpu is None else self._on_gpu(feed, self._gpu)
        placed = tuple(output.to(tensors[0].device) for output in outputs)
        return placed[0] if len(placed) == 1 else placed

    def _on_processor(self, feed: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in feed.items()}
        return [torch.from_numpy(output) for output in self.session.run(None, arrays)]

    def _on_gpu(self, feed: Mapping[str, torch.Tensor], gpu: torch.device) -> list[torch.Tensor]:
        """Reads the tensors where they are, and leaves the outputs there."""
        feed = {name: tensor.contiguous() for name, tensor in feed.items()}
        binding = self.session.io_binding()
        for name, tensor in feed.items():
            kind = _numpy_type(tensor.dtype).type
            binding.bind_input(name, "cuda", gpu.index, kind, tuple(tensor.shape), tensor.data_ptr())
        for output in self.session.get_outputs():
            binding.bind_output(output.name, "cuda", gpu.index)
        # onnxruntime computes on a stream of its own.
        torch.cuda.current_stream(gpu).synchronize()
        self.session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return [_as_tensor(output, gpu) for output in binding.get_outputs()]

    def __getattr__(self, name: str) -> Any:
        if name == "session":
            raise AttributeError(name)
        return getattr(self.session, name)


_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}


class _Memory:
    """An output on the GPU as torch takes it over without a copy; it lives as long as the tensor."""

    def __init__(self, value: Any, kind: torch.dtype) -> None:
        self._value = value
        self.__cuda_array_interface__ = {
            "shape": tuple(value.shape()),
            "typestr": _numpy_type(kind).str,
            "data": (value.data_ptr(), False),
            "version": 2,
        }


def _as_tensor(value: Any, gpu: torch.device) -> torch.Tensor:
    kind = _TYPES.get(value.data_type())
    if kind is None:
        return torch.from_numpy(value.numpy())
    return torch.as_tensor(_Memory(value, kind), device=gpu)


def _numpy_type(kind: torch.dtype) -> Any:
    return torch.empty(0, dtype=kind).numpy().dtype


_ANY: Final = -1
_SIGNATURE: Final = "_ms_sides"
_ONNX: Final = {"float": "FP32", "double": "FP64", "string": "BYTES"}
_DeclaredTensor = tuple[str, Any, Iterable[Any]]  # name, datatype, sizes


def network_of(program: Any) -> Any:
    """The network of an exported program, with what the program declares."""
    network = program.module()
    named = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs, outputs = program.graph_signature.user_inputs, program.graph_signature.user_outputs
    rows = fixed_rows(getattr(named.get(name), "shape", ()) for name in inputs)
    if rows is not None:
        compute_in_parts(network, rows)
    if all(hasattr(named.get(name), "shape") for name in (*inputs, *outputs)):
        tensors = {name: (name, _torch_type(named[name]), named[name].shape) for name in (*inputs, *outputs)}
        taken, returned = ([tensors[name] for name in side] for side in (inputs, outputs))
        setattr(network, _SIGNATURE, HandlerSignature(_side(taken), _side(returned, is_output=True)))
    return network


def declared_signature(network: Any) -> HandlerSignature | None:
    """The inputs and outputs that the file of a network declares, None if it declares nothing."""
    if isinstance(network, OnnxNetwork):
        session = network.session
        inputs = [(each.name, _onnx_type(each.type), each.shape) for each in session.get_inputs()]
        outputs = [(each.name, _onnx_type(each.type), each.shape) for each in session.get_outputs()]
        return HandlerSignature(_side(inputs), _side(outputs, is_output=True))
    declared: HandlerSignature | None = getattr(network, _SIGNATURE, None)
    return declared


def _side(declared: Iterable[_DeclaredTensor], *, is_output: bool = False) -> Described:
    """The first size is the rows; outputs have the names that answers give them."""
    tensors = []
    for place, (name, datatype, sizes) in enumerate(declared):
        rest = (size if isinstance(size, int) and size > 0 else _ANY for size in list(sizes)[1:])
        tensors.append((f"output_{place}" if is_output else name, datatype, (_ANY, *rest)))
    return Described(tuple(tensors))


def _torch_type(value: Any) -> str:
    return datatype_named(str(value.dtype).removeprefix("torch."))


def _onnx_type(kind: str) -> str:
    name = kind.removeprefix("tensor(").removesuffix(")")
    return _ONNX.get(name) or datatype_named(name)
