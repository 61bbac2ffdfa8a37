"""``pt2`` of model-config.yaml: torch.compile (reference 14.2)."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks.cache import cache_folder

logger = logging.getLogger(__name__)

_PROCESSOR = torch.device("cpu")


class PT2Backend(str, Enum):
    """The backends that TorchServe knows."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    NVFUSER = "nvfuser"
    AOT_NVFUSER = "aot_nvfuser"
    AOT_CUDAGRAPHS = "aot_cudagraphs"
    OFI = "ofi"
    FX2TRT = "fx2trt"
    ONNXRT = "onnxrt"
    IPEX = "ipex"
    TORCHXLA_TRACE_ONCE = "torchxla_trace_once"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    HPU_BACKEND = "hpu_backend"


def check_valid_pt2_backend(backend: str) -> bool:
    """Whether TorchServe or the installed torch knows the backend; warns if not."""
    if any(backend == known.value for known in PT2Backend) or backend in torch.compiler.list_backends(()):
        return True
    logger.warning("%s is not a supported backend", backend)
    return False


def compile_model(model: Any, config: Mapping[str, Any]) -> Any:
    """``model``, compiled if the document's ``pt2`` asks for it; uncompiled with a warning if that fails.

    Raises ModelLoadError for ``pt2: {compile: ...}`` without ``enable``.
    """
    arguments = compile_arguments(config)
    backend = str((arguments or {}).get("backend", "inductor"))
    if arguments is None or not check_valid_pt2_backend(backend):
        return model
    if backend == "inductor":
        prepare_inductor()
    try:
        compiled = torch.compile(model, **arguments)
    except (RuntimeError, TypeError, ValueError) as error:
        logger.warning("Compiling the model failed, it runs uncompiled: %s", error)
        return model
    logger.info("Compiled the model with %s", arguments or "the default settings")
    return compiled


def prepare_inductor() -> None:
    """Freeze weights into the compiled code, and keep that code in the cache."""
    from torch._inductor import config  # noqa: PLC0415 - seconds of imports

    config.freezing = True
    folder = cache_folder("compiled")
    if folder is not None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def finds_compiler(device: torch.device = _PROCESSOR) -> bool:
    """Whether inductor can compile: for a processor with a C++ compiler, for a GPU with the C compiler that
    Triton builds its launchers with.
    """
    if device.type != "cpu":
        own = os.environ.get("CC")
        return device.type != "cuda" or any(map(shutil.which, [own] if own else ["gcc", "clang"]))
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415 - seconds of imports

        get_cpp_compiler()
    except (ImportError, RuntimeError) as error:
        logger.debug("No C++ compiler: %s", error)
        return False
    return True


def compile_arguments(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of torch.compile in the document's ``pt2``, None if it is not wanted.

    Raises ModelLoadError for ``pt2: {compile: ...}`` without ``enable``.
    """
    pt2 = config.get("pt2")
    if not pt2:
        return None
    if isinstance(pt2, str):
        logger.warning("pt2: %s is deprecated, use pt2: {compile: {enable: true, backend: %s}}", pt2, pt2)
        return {"backend": pt2}
    if not isinstance(pt2, Mapping):
        raise ModelLoadError(f"pt2 must be a mapping, got {pt2!r}")
    if "compile" in pt2:
        return _enabled(pt2["compile"])
    if "export" in pt2:
        return None
    logger.warning("torch.compile's settings directly under pt2 are deprecated, use pt2: {compile: ...}")
    return dict(pt2)


def _enabled(settings: Any) -> dict[str, Any] | None:
    if not isinstance(settings, Mapping) or "enable" not in settings:
        raise ModelLoadError("pt2: compile: needs enable: true or enable: false")
    arguments = dict(settings)
    return arguments if arguments.pop("enable") else None
