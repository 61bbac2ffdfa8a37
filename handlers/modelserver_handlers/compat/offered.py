"""What of TorchServe's modules is offered: each name of ``ts`` and what it leads to."""

from __future__ import annotations

OFFERED: dict[str, dict[str, str]] = {
    "ts.context": {"Context": "context.Context", "RequestProcessor": "context.RequestProcessor"},
    "ts.handler_utils.hf_batch_streamer": {
        "TextIteratorStreamerBatch": "compat.batch_streamer.TextIteratorStreamerBatch"
    },
    "ts.handler_utils.micro_batching": {
        "HANDLER_METHODS": "micro_batching.HANDLER_METHODS",
        "MicroBatching": "micro_batching.MicroBatching",
    },
    "ts.handler_utils.text_utils": {
        "get_tokenizer": "words.tokenizer.get_tokenizer",
        "ngrams_iterator": "words.tokenizer.ngrams_iterator",
    },
    "ts.handler_utils.timer": {"timed": "timer.timed"},
    "ts.handler_utils.utils": {
        "import_class": "compat.utilities.import_class",
        "send_intermediate_predict_response": "streaming.send_intermediate_predict_response",
    },
    "ts.launcher": {
        "register_model": "compat.launcher.register_model",
        "register_model_with_params": "compat.launcher.register_model_with_params",
        "start": "compat.launcher.start",
        "stop": "compat.launcher.stop",
    },
    "ts.metrics.caching_metric": {"CachingMetric": "metrics.caching.CachingMetric"},
    "ts.metrics.dimension": {"Dimension": "metrics.values.Dimension"},
    "ts.metrics.metric": {"Metric": "metrics.metric.Metric"},
    "ts.metrics.metric_abstract": {"MetricAbstract": "metrics.caching.MetricAbstract"},
    "ts.metrics.metric_cache_abstract": {"MetricCacheAbstract": "metrics.cache.MetricsCache"},
    "ts.metrics.metric_cache_errors": {
        "GeneralMetricsCacheError": "metrics.errors.GeneralMetricsCacheError",
        "MetricsCacheIOError": "metrics.errors.MetricsCacheIOError",
        "MetricsCacheKeyError": "metrics.errors.MetricsCacheKeyError",
        "MetricsCachePyYamlError": "metrics.errors.MetricsCachePyYamlError",
        "MetricsCacheTypeError": "metrics.errors.MetricsCacheTypeError",
        "MetricsCacheValueError": "metrics.errors.MetricsCacheValueError",
    },
    "ts.metrics.metric_cache_yaml_impl": {"MetricsCacheYamlImpl": "metrics.cache.MetricsCacheYamlImpl"},
    "ts.metrics.metric_encoder": {"MetricEncoder": "metrics.metric.MetricEncoder"},
    "ts.metrics.metric_type_enum": {"MetricTypes": "metrics.values.MetricTypes"},
    "ts.metrics.metrics_store": {"MetricsStore": "metrics.metric.MetricsStore"},
    "ts.metrics.process_memory_metric": {
        "check_process_mem_usage": "metrics.process.check_process_mem_usage",
        "get_cpu_usage": "metrics.process.get_cpu_usage",
    },
    "ts.metrics.system_metrics": {
        "collect_all": "metrics.system.collect_all",
        "cpu_utilization": "metrics.system.cpu_utilization",
        "dimension": "metrics.system.dimension",
        "disk_available": "metrics.system.disk_available",
        "disk_used": "metrics.system.disk_used",
        "disk_utilization": "metrics.system.disk_utilization",
        "gpu_utilization": "metrics.system.gpu_utilization",
        "memory_available": "metrics.system.memory_available",
        "memory_used": "metrics.system.memory_used",
        "memory_utilization": "metrics.system.memory_utilization",
        "system_metrics": "metrics.system.system_metrics",
    },
    "ts.metrics.unit": {"Units": "metrics.values.Units"},
    "ts.model_server": {"start": "compat.launcher.run_command"},
    "ts.model_service.model_service": {
        "ModelService": "compat.services.ModelService",
        "SingleNodeService": "compat.services.SingleNodeService",
    },
    "ts.protocol.otf_message_handler": {
        "send_intermediate_predict_response": "compat.old_streaming.send_intermediate_predict_response"
    },
    "ts.service": {
        "PredictionException": "errors.PredictionException",
        "emit_metrics": "metrics.metric.emit_metrics",
    },
    "ts.torch_handler.base_handler": {
        "BaseHandler": "base.BaseHandler",
        "IPEX_AVAILABLE": "base.IPEX_AVAILABLE",
        "ONNX_AVAILABLE": "base.ONNX_AVAILABLE",
        "PROFILER_AVAILABLE": "base.PROFILER_AVAILABLE",
        "PT230_AVAILABLE": "base.PT230_AVAILABLE",
        "PT2_AVAILABLE": "base.PT2_AVAILABLE",
        "XLA_AVAILABLE": "base.XLA_AVAILABLE",
        "setup_ort_session": "base.setup_ort_session",
    },
    "ts.torch_handler.contractions": {"CONTRACTION_MAP": "words.contractions.CONTRACTION_MAP"},
    "ts.torch_handler.densenet_handler": {"DenseNetHandler": "densenet_handler.DenseNetHandler"},
    "ts.torch_handler.image_classifier": {"ImageClassifier": "image_classifier.ImageClassifier"},
    "ts.torch_handler.image_segmenter": {"ImageSegmenter": "image_segmenter.ImageSegmenter"},
    "ts.torch_handler.object_detector": {"ObjectDetector": "object_detector.ObjectDetector"},
    "ts.torch_handler.request_envelope.base": {"BaseEnvelope": "envelopes.base.BaseEnvelope"},
    "ts.torch_handler.request_envelope.body": {"BodyEnvelope": "envelopes.body.BodyEnvelope"},
    "ts.torch_handler.request_envelope.json": {"JSONEnvelope": "envelopes.instances.JSONEnvelope"},
    "ts.torch_handler.request_envelope.kserve": {
        "KServeEnvelope": "envelopes.kserve.KserveEnvelope",
        "KserveEnvelope": "envelopes.kserve.KserveEnvelope",
    },
    "ts.torch_handler.request_envelope.kservev2": {
        "KServev2Envelope": "envelopes.kservev2.KserveV2Envelope",
        "KserveV2Envelope": "envelopes.kservev2.KserveV2Envelope",
    },
    "ts.torch_handler.text_classifier": {"TextClassifier": "text_classifier.TextClassifier"},
    "ts.torch_handler.text_handler": {"TextHandler": "text_handler.TextHandler"},
    "ts.torch_handler.unit_tests.models.base_model": {
        "ArgmaxModel": "compat.base_model.ArgmaxModel",
        "save_pt_file": "compat.base_model.save_pt_file",
    },
    "ts.torch_handler.unit_tests.test_utils.mock_context": {"MockContext": "compat.mock_context.MockContext"},
    "ts.torch_handler.unit_tests.test_utils.model_dir": {
        "copy_files": "compat.mock_context.copy_files",
        "download_model": "compat.mock_context.download_model",
    },
    "ts.torch_handler.vision_handler": {"VisionHandler": "vision.VisionHandler"},
    "ts.utils.timeit_decorator": {"timeit": "timer.timeit"},
    "ts.utils.util": {
        "CLEANUP_REGEX": "compat.utilities.CLEANUP_REGEX",
        "PT2Backend": "networks.compilation.PT2Backend",
        "PredictionException": "errors.PredictionException",
        "check_valid_pt2_backend": "networks.compilation.check_valid_pt2_backend",
        "deprecated": "compat.utilities.deprecated",
        "get_yaml_config": "compat.utilities.get_yaml_config",
        "list_classes_from_module": "networks.modules.list_classes_from_module",
        "load_label_mapping": "labels.load_label_mapping",
        "map_class_to_label": "labels.map_class_to_label",
    },
    "ts.version": {"__version__": "compat.TORCHSERVE_VERSION"},
}
"""Module to its names, and the place in modelserver_handlers that each leads to."""

BESIDE: dict[str, str] = {
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
"""Module to the names that TorchServe's module has from its others, which handlers import from there too."""

LATE = frozenset({"ts.utils.util.PT2Backend", "ts.utils.util.check_valid_pt2_backend"})
"""What needs torch in a module that does not: imported when it is asked for."""
