"""Networks as ONNX files, if onnxruntime is installed (reference 14.1)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks.fixed_rows import fixed_rows, in_parts
from modelserver_handlers.networks.modules import require_file

ONNX_AVAILABLE = find_spec("onnxruntime") is not None


def setup_ort_session(model_pt_path: str, map_location: str | None) -> Any:
    """The ``InferenceSession`` of an ONNX file, on the GPU where ``map_location`` is "cuda".

    It uses as many threads as torch would, unlike TorchServe, where each worker uses all cores. Raises
    ModelLoadError without onnxruntime, and for a file that is not an ONNX model.
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
    on_gpu = ["CUDAExecutionProvider"] if map_location == "cuda" else []
    try:
        return onnxruntime.InferenceSession(
            model_pt_path, sess_options=settings, providers=[*on_gpu, "CPUExecutionProvider"]
        )
    except Exception as error:  # the only common base of onnxruntime's own classes
        raise ModelLoadError(f"{name} is not an ONNX model that onnxruntime can run: {error}") from error


class OnnxNetwork:
    """A session that is called like a network: tensors in, tensors out.

    One input tensor per input of the model, in order; the answer is a tensor, or a tuple of them where the
    model has several outputs. The session's own methods (``run``, ``get_inputs``) are there too.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        inputs = session.get_inputs()
        self._inputs = [(entry.name, _TYPES.get(entry.type)) for entry in inputs]
        self._ms_fixed_rows = fixed_rows(getattr(entry, "shape", ()) for entry in inputs)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The model's outputs for ``tensors``, on the device of the first one."""
        rows = self._ms_fixed_rows
        return self._compute(*tensors) if rows is None else in_parts(self._compute, rows, tensors, {})

    def _compute(self, *tensors: torch.Tensor) -> Any:
        if len(tensors) != len(self._inputs):
            names = ", ".join(name for name, _ in self._inputs)
            raise TypeError(f"the model takes {len(self._inputs)} inputs ({names}), got {len(tensors)}")
        feed = {
            name: tensor.detach().to(dtype or tensor.dtype).cpu().numpy()
            for (name, dtype), tensor in zip(self._inputs, tensors, strict=True)
        }
        outputs = tuple(
            torch.from_numpy(output).to(tensors[0].device) for output in self.session.run(None, feed)
        )
        return outputs[0] if len(outputs) == 1 else outputs

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
