"""Where a model runs."""

from __future__ import annotations

import os

import torch


def choose_device(gpu_id: int | None) -> tuple[str, torch.device]:
    """``map_location`` and device for the GPU that the server assigned, if any (reference 14.1)."""
    if gpu_id is not None:
        if torch.cuda.is_available():
            return "cuda", torch.device("cuda", int(gpu_id))
        if os.environ.get("TS_IPEX_GPU_ENABLE") == "true" and torch.xpu.is_available():
            return "xpu", torch.device("xpu", int(gpu_id))
        if torch.backends.mps.is_available():
            return "mps", torch.device("mps")
    return "cpu", torch.device("cpu")
