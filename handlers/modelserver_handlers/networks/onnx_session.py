"""Networks as ONNX files, if onnxruntime is installed (reference 14.1)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks.fixed_rows import fixed_rows, in_parts
from modelserver_handlers.networks.modules import require_file

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        """Of its only input, without the batch, if that has floats and one shape; else None."""
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
