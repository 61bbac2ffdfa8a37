"""Every name of TorchServe's Python side and its state here.

What is offered stands in its own table; remarks and what is left out stand below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modelserver_handlers.compat.offered import ABSENT, OFFERED

SAME = "same"
BETTER = "better"
OTHER = "differs"
ABSENT_STATE = "not offered"

_BATCH = "the whole batch is answered and explained, a bad row is rejected alone"
_WIRE = "the protocol between server and worker differs"
_INSIDE_MICRO_BATCHING = "an internal part of MicroBatching"
_METRICS = "values go to `/metrics` with the batch's answers, not through standard output"

_SAME_REMARKS = {
    "ts.metrics.caching_metric.CachingMetric": _METRICS,
    "ts.metrics.metric_cache_yaml_impl.MetricsCacheYamlImpl": _METRICS,
    "ts.protocol.otf_message_handler.send_intermediate_predict_response": "deprecated, with the same warning",
}
_BETTER_REMARKS = {
    "ts.context.Context": "also `reject`, `is_cancelled`, `get_request_parameters`",
    "ts.handler_utils.hf_batch_streamer.TextIteratorStreamerBatch": (
        "ends with the last text, not with the first; is not a BaseStreamer"
    ),
    "ts.handler_utils.micro_batching.MicroBatching": (
        "an exception in a phase fails the batch instead of hanging; an empty batch is answered"
    ),
    "ts.handler_utils.utils.send_intermediate_predict_response": "ends the call when all clients are gone",
    "ts.metrics.metric_cache_abstract.MetricCacheAbstract": (
        "can be instantiated; a name may have different dimensions; an error's series names its model"
    ),
    "ts.metrics.metric.Metric": "holds its updated value instead of its initial one",
    "ts.metrics.metrics_store.MetricsStore": "keeps the dimensions given to a metric",
    "ts.torch_handler.base_handler.BaseHandler": (
        "batches can be prepared ahead; loading weights runs no code; GPUs may round to TF32 once a model is"
        " loaded, not when this is imported"
    ),
    "ts.torch_handler.densenet_handler.DenseNetHandler": "takes batches",
    "ts.torch_handler.image_classifier.ImageClassifier": _BATCH + "; any number of classes",
    "ts.torch_handler.image_segmenter.ImageSegmenter": _BATCH,
    "ts.torch_handler.object_detector.ObjectDetector": _BATCH + "; pictures may differ in size",
    "ts.torch_handler.request_envelope.kserve.KServeEnvelope": "each request of a batch is answered",
    "ts.torch_handler.request_envelope.kservev2.KServev2Envelope": "each request of a batch is answered",
    "ts.torch_handler.text_classifier.TextClassifier": _BATCH,
    "ts.torch_handler.vision_handler.VisionHandler": _BATCH + "; Captum is not needed",
    "ts.torch_handler.vllm_handler.VLLMHandler": (
        "also embeddings and scores; a client that leaves ends its generation; its inner methods are others"
    ),
    "ts.utils.util.check_valid_pt2_backend": "knows the installed torch's backends too",
}
_OTHER_REMARKS = {
    "ts.launcher.register_model": "returns status and answer",
    "ts.launcher.register_model_with_params": "returns status and answer",
    "ts.llm_launcher.main": "becomes the command `modelserver llm`; `--engine trt_llm` is refused",
    "ts.model_server.start": "becomes the command `modelserver`",
    "ts.metrics.system_metrics.gpu_utilization": "uses NVIDIA's library, needs no nvgpu",
    "ts.torch_handler.base_handler.setup_ort_session": (
        "as many threads as the worker has cores; fails if onnxruntime cannot use the GPU"
    ),
    "ts.torch_handler.text_handler.TextHandler": (
        "no torchtext; a vocabulary maps words to numbers; explanations are one number per word"
    ),
    "ts.utils.util.load_label_mapping": "wrong files raise ValueError instead of Exception",
    "ts.utils.util.map_class_to_label": "wrong arguments raise TypeError instead of Exception",
}
REMARKS = {
    name: (state, remark)
    for state, remarks in ((SAME, _SAME_REMARKS), (BETTER, _BETTER_REMARKS), (OTHER, _OTHER_REMARKS))
    for name, remark in remarks.items()
}
"""Offered names with a remark."""

LEFT_OUT: dict[str, str] = {
    "ts.handler_utils.micro_batching.WorkerThread": _INSIDE_MICRO_BATCHING,
    "ts.handler_utils.micro_batching.execute_call": _INSIDE_MICRO_BATCHING,
    "ts.handler_utils.utils.create_predict_response": _WIRE,
    "ts.launcher.PrintTillTheEnd": "an internal part of the launcher",
    "ts.launcher.Tee": "an internal part of the launcher",
    "ts.model_server.ArgParser": "the command is `modelserver`",
    "ts.model_server.load_properties": "`modelserver --print-settings` shows every setting and its source",
    "ts.protocol.otf_message_handler.create_load_model_response": _WIRE,
    "ts.protocol.otf_message_handler.create_predict_response": _WIRE,
    "ts.protocol.otf_message_handler.encode_response_headers": _WIRE,
    "ts.protocol.otf_message_handler.retrieve_msg": _WIRE,
    "ts.service.Service": "a part of TorchServe's own process",
    "ts.service.create_predict_response": _WIRE,
}
"""Names missing from offered modules, and why."""


@dataclass(frozen=True, slots=True, order=True)
class TsName:
    """One name (``module.name``, or a whole module) and its state."""

    name: str
    state: str
    remark: str = ""


def offered() -> Iterator[str]:
    """``module.name`` of everything that is there; nothing is imported."""
    yield "ts.__version__"
    yield from (f"{module}.{name}" for module, names in OFFERED.items() for name in names)


def names() -> list[TsName]:
    """All names in order."""
    here = [TsName(name, *REMARKS.get(name, (SAME,))) for name in offered()]
    not_here = [TsName(name, ABSENT_STATE, remark) for name, remark in (ABSENT | LEFT_OUT).items()]
    return sorted([*here, *not_here])
