"""What a network computes in: float32, rounded to TF32 on GPUs or not, or bfloat16 (``precision: bf16``).

Its inputs and outputs stay float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from modelserver_handlers.errors import ModelLoadError

TF32_SINCE = (8, 0)  # the compute capability


def has_tf32(device: torch.device) -> bool:
    """Whether a GPU can compute in TF32."""
    return torch.cuda.get_device_capability(device) >= TF32_SINCE


def choose_float32(device: torch.device, tf32: bool | None) -> tuple[str, str]:
    """Let ``device`` round float32 to TF32 in matrix products and convolutions, if it is a GPU that can.

    ``tf32`` is False if it must not. Returns the precision in use, and why.
    """
    if device.type != "cuda":
        return "fp32", "TF32 is for NVIDIA's GPUs, and the network is not on one"
    rounds = tf32 is not False and has_tf32(device)
    torch.set_float32_matmul_precision("high" if rounds else "highest")
    torch.backends.cudnn.allow_tf32 = rounds
    if rounds:
        return "tf32", "the GPU rounds the factors of matrix products and convolutions to TF32"
    if tf32 is False:
        return "fp32", "matrix products and convolutions are exact"
    return "fp32", "the GPU has no TF32, for which its compute capability must be 8.0 or higher"


def is_eager(model: Any) -> bool:
    """Whether it is an ordinary network, not a TorchScript, exported or compiled program."""
    exported = (torch.jit.ScriptModule, torch.fx.GraphModule)
    # What torch.compile returns is a module, too, with the network in it.
    compiled = hasattr(model, "_orig_mod")
    return isinstance(model, nn.Module) and not isinstance(model, exported) and not compiled


def statistics_of(module: nn.Module) -> set[int]:
    """The ids of all tensors of its batch norms."""
    norms = (norm for norm in module.modules() if isinstance(norm, _BatchNorm))
    return {id(tensor) for norm in norms for tensor in (*norm.parameters(), *norm.buffers())}


def convert(module: nn.Module) -> nn.Module:
    """Convert its parameters to bfloat16, in place; batch norms stay, because of their small variances."""
    statistics = statistics_of(module)
    with torch.no_grad():
        module._apply(lambda tensor: tensor if id(tensor) in statistics else half(tensor))  # type: ignore[no-untyped-call]
    return module


def half(value: Any) -> Any:
    """float32 tensors in bfloat16; anything else as it is."""
    is_float = isinstance(value, torch.Tensor) and value.dtype == torch.float32
    return value.to(torch.bfloat16) if is_float else value


def full(value: Any) -> Any:
    """bfloat16 tensors in float32; anything else as it is."""
    is_half = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
    return value.float() if is_half else value


def in_bf16(forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` of a converted network, for float32 inputs and outputs."""

    def cast(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(half, (args, kwargs))
        return tree_map(full, forward(*args, **kwargs))

    return cast


def use_bf16(model: Any) -> Any:
    """The network itself, converted: for those that are not optimised.

    Raises ModelLoadError if it is not an eager network: its precision was fixed when it was exported.
    """
    if not is_eager(model):
        raise ModelLoadError("precision: bf16 needs an eager network, not an exported or compiled program")
    convert(model)
    model.forward = in_bf16(model.forward)
    return model
