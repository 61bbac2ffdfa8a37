"""TorchServe's modules that are not provided, and why."""

from __future__ import annotations

_OTHER_PROCESS = "it is an internal part of TorchServe's process"
_LLM = "write a handler for language models (docs/handlers.md: streaming, asyncCommunication)"
_DALI = "image_classifier decodes on the GPU with `handler: {decode: nvjpeg}` in model-config.yaml"

ABSENT: dict[str, str] = {
    "ts.arg_parser": "the command is `modelserver`, whose flags `modelserver --help` lists",
    "ts.async_service": _OTHER_PROCESS,
    "ts.handler_utils.distributed.deepspeed": "DeepSpeed's engine is made in a handler's initialize",
    "ts.handler_utils.distributed.pt_pippy": "PiPPy is no longer developed; torch.distributed.pipelining is",
    "ts.llm_launcher": _LLM,
    "ts.metrics.metric_collector": "the server collects system metrics itself (GET /metrics)",
    "ts.model_loader": _OTHER_PROCESS,
    "ts.model_service_worker": _OTHER_PROCESS,
    "ts.torch_handler.dali_handler": _DALI,
    "ts.torch_handler.dali_image_classifier": _DALI,
    "ts.torch_handler.distributed.base_deepspeed_handler": (
        "a custom handler can run in several processes with `torchrun` in model-config.yaml"
    ),
    "ts.torch_handler.distributed.base_pippy_handler": (
        "PiPPy is no longer developed; torch.distributed.pipelining is"
    ),
    "ts.torch_handler.trt_llm_handler": _LLM,
    "ts.torch_handler.vllm_handler": _LLM,
    "ts.utils.hf_utils": "huggingface_hub.snapshot_download does the same",
    "ts.utils.setup_model_venv": _OTHER_PROCESS,
}
"""Module to the reason."""
