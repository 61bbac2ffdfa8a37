"""The base of handlers."""

from __future__ import annotations

from modelserver_handlers.base import (
    IPEX_AVAILABLE,
    ONNX_AVAILABLE,
    PROFILER_AVAILABLE,
    PT2_AVAILABLE,
    PT230_AVAILABLE,
    XLA_AVAILABLE,
    BaseHandler,
    setup_ort_session,
)
from modelserver_handlers.labels import load_label_mapping  # noqa: F401 - as in TorchServe
from modelserver_handlers.networks.compilation import check_valid_pt2_backend  # noqa: F401 - as in TorchServe
from modelserver_handlers.networks.modules import list_classes_from_module  # noqa: F401 - as in TorchServe
from modelserver_handlers.timer import timed  # noqa: F401 - as in TorchServe

__all__ = [
    "IPEX_AVAILABLE",
    "ONNX_AVAILABLE",
    "PROFILER_AVAILABLE",
    "PT2_AVAILABLE",
    "PT230_AVAILABLE",
    "XLA_AVAILABLE",
    "BaseHandler",
    "setup_ort_session",
]
