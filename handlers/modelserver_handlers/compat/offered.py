"""The names of TorchServe's modules that are provided, with their places here; and those that are not."""

from __future__ import annotations

_OTHER_PROCESS = "it is an internal part of TorchServe's process"
_TRT_LLM = "vllm_handler serves language models (docs/language-models.md)"
_DALI = "image_classifier decodes on the GPU with `handler: {decode: nvjpeg}` in model-config.yaml"

ABSENT: dict[str, str] = {
    "ts.arg_parser": "the command is `modelserver`, whose flags `modelserver --help` lists",
    "ts.async_service": _OTHER_PROCESS,
    "ts.handler_utils.distributed.deepspeed": "DeepSpeed's engine is made in a handler's initialize",
    "ts.handler_utils.distributed.pt_pippy": "PiPPy is no longer developed; torch.distributed.pipelining is",
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
    "ts.torch_handler.trt_llm_handler": _TRT_LLM,
    "ts.utils.hf_utils": "huggingface_hub.snapshot_download does the same",
    "ts.utils.setup_model_venv": _OTHER_PROCESS,
}
"""Module to the reason."""


# Each module, and its names as ``place: names``; a name that differs here is written ``theirs=ours``.
_TABLE = {
    "ts.context": "context: Context RequestProcessor",
    "ts.handler_utils.hf_batch_streamer": "compat.batch_streamer: TextIteratorStreamerBatch",
    "ts.handler_utils.micro_batching": "micro_batching: HANDLER_METHODS MicroBatching",
    "ts.handler_utils.text_utils": "texts: get_tokenizer ngrams_iterator",
    "ts.handler_utils.timer": "timer: timed",
    "ts.handler_utils.utils": "compat.utilities: import_class; streaming: send_intermediate_predict_response",
    "ts.llm_launcher": "compat.launcher: main=run_llm_command",
    "ts.launcher": "compat.launcher: register_model register_model_with_params start stop",
    "ts.metrics.caching_metric": "metrics.cache: CachingMetric",
    "ts.metrics.dimension": "metrics.cache: Dimension",
    "ts.metrics.metric": "metrics.metric: Metric",
    "ts.metrics.metric_abstract": "metrics.cache: MetricAbstract",
    "ts.metrics.metric_cache_abstract": "metrics.cache: MetricCacheAbstract=MetricsCache",
    "ts.metrics.metric_cache_errors": (
        "metrics.cache: GeneralMetricsCacheError MetricsCacheIOError MetricsCacheKeyError "
        "MetricsCacheTypeError MetricsCacheValueError; metrics.yaml_errors: MetricsCachePyYamlError"
    ),
    "ts.metrics.metric_cache_yaml_impl": "metrics.cache: MetricsCacheYamlImpl",
    "ts.metrics.metric_encoder": "metrics.metric: MetricEncoder",
    "ts.metrics.metric_type_enum": "metrics.cache: MetricTypes",
    "ts.metrics.metrics_store": "metrics.metric: MetricsStore",
    "ts.metrics.process_memory_metric": "metrics.system: check_process_mem_usage get_cpu_usage",
    "ts.metrics.system_metrics": (
        "metrics.system: collect_all cpu_utilization dimension disk_available disk_used disk_utilization "
        "gpu_utilization memory_available memory_used memory_utilization system_metrics"
    ),
    "ts.metrics.unit": "metrics.cache: Units",
    "ts.model_server": "compat.launcher: start=run_command",
    "ts.model_service.model_service": "compat.utilities: ModelService SingleNodeService",
    "ts.protocol.otf_message_handler": "compat.utilities: send_intermediate_predict_response",
    "ts.service": "errors: PredictionException; metrics.metric: emit_metrics",
    "ts.torch_handler.base_handler": (
        "base: BaseHandler IPEX_AVAILABLE ONNX_AVAILABLE PROFILER_AVAILABLE PT230_AVAILABLE PT2_AVAILABLE "
        "XLA_AVAILABLE setup_ort_session"
    ),
    "ts.torch_handler.contractions": "texts: CONTRACTION_MAP",
    "ts.torch_handler.densenet_handler": "densenet_handler: DenseNetHandler",
    "ts.torch_handler.image_classifier": "image_classifier: ImageClassifier",
    "ts.torch_handler.image_segmenter": "image_segmenter: ImageSegmenter",
    "ts.torch_handler.object_detector": "object_detector: ObjectDetector",
    "ts.torch_handler.request_envelope.base": "envelopes: BaseEnvelope",
    "ts.torch_handler.request_envelope.body": "envelopes: BodyEnvelope",
    "ts.torch_handler.request_envelope.json": "envelopes: JSONEnvelope",
    "ts.torch_handler.request_envelope.kserve": ("envelopes: KServeEnvelope=KserveEnvelope KserveEnvelope"),
    "ts.torch_handler.request_envelope.kservev2": (
        "envelopes: KServev2Envelope=KserveV2Envelope KserveV2Envelope"
    ),
    "ts.torch_handler.text_classifier": "text_classifier: TextClassifier",
    "ts.torch_handler.text_handler": "text_handler: TextHandler",
    "ts.torch_handler.unit_tests.models.base_model": "compat.base_model: ArgmaxModel save_pt_file",
    "ts.torch_handler.unit_tests.test_utils.mock_context": "compat.mock_context: MockContext",
    "ts.torch_handler.unit_tests.test_utils.model_dir": "compat.mock_context: copy_files download_model",
    "ts.torch_handler.vision_handler": "vision: VisionHandler",
    "ts.torch_handler.vllm_handler": "language.vllm_handler: VLLMHandler",
    "ts.utils.timeit_decorator": "timer: timeit",
    "ts.utils.util": (
        "compat.utilities: CLEANUP_REGEX deprecated get_yaml_config; networks.compilation: PT2Backend "
        "check_valid_pt2_backend; errors: PredictionException; networks.modules: list_classes_from_module; "
        "labels: load_label_mapping map_class_to_label"
    ),
    "ts.version": "compat: __version__=TORCHSERVE_VERSION",
}


def _places(row: str) -> dict[str, str]:
    places = {}
    for group in row.split("; "):
        home, _, names = group.partition(": ")
        for name in names.split():
            offered, _, own = name.partition("=")
            places[offered] = f"{home}.{own or offered}"
    return places


OFFERED: dict[str, dict[str, str]] = {module: _places(row) for module, row in _TABLE.items()}
"""Module to its names, and the place in modelserver_handlers of each."""

REEXPORTED: dict[str, str] = {
    "ts.handler_utils.utils": "Context",
    "ts.metrics.caching_metric": "Dimension MetricAbstract MetricTypes",
    "ts.metrics.metric": "CachingMetric MetricTypes MetricUnit Units",
    "ts.metrics.metric_abstract": "MetricTypes MetricUnit Units",
    "ts.metrics.metric_cache_abstract": "Dimension MetricAbstract MetricTypes",
    "ts.metrics.metric_cache_yaml_impl": "CachingMetric MetricCacheAbstract MetricTypes",
    "ts.metrics.metric_encoder": "Dimension Metric",
    "ts.metrics.metrics_store": "Dimension Metric",
    "ts.metrics.system_metrics": "Dimension Metric",
    "ts.protocol.otf_message_handler": "deprecated",
    "ts.service": "Context RequestProcessor get_yaml_config",
    "ts.torch_handler.base_handler": (
        "check_valid_pt2_backend list_classes_from_module load_label_mapping timed"
    ),
    "ts.torch_handler.densenet_handler": "list_classes_from_module",
    "ts.torch_handler.image_classifier": "VisionHandler map_class_to_label timed",
    "ts.torch_handler.image_segmenter": "VisionHandler",
    "ts.torch_handler.object_detector": "VisionHandler map_class_to_label",
    "ts.torch_handler.request_envelope.body": "BaseEnvelope",
    "ts.torch_handler.request_envelope.json": "BaseEnvelope",
    "ts.torch_handler.request_envelope.kserve": "BaseEnvelope",
    "ts.torch_handler.request_envelope.kservev2": "BaseEnvelope",
    "ts.torch_handler.text_classifier": "TextHandler map_class_to_label ngrams_iterator",
    "ts.torch_handler.text_handler": "BaseHandler CLEANUP_REGEX CONTRACTION_MAP get_tokenizer",
    "ts.torch_handler.unit_tests.test_utils.mock_context": "MetricsStore get_yaml_config",
    "ts.torch_handler.vision_handler": "BaseHandler timed",
}
"""Module to the names that TorchServe's module imports from others, and handlers import from it."""

LAZY = frozenset({"ts.utils.util.PT2Backend", "ts.utils.util.check_valid_pt2_backend"})
"""Names that need torch in a module that does not: imported on first use."""
