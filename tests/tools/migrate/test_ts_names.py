"""The table of TorchServe's names: complete, and printed as it stands."""

import re

from modelserver.tools.migrate.ts_names import LEFT_OUT, REMARKS, names, offered

# Reference 13, and what reference 14 adds.
SECTION_13 = re.findall(
    r"\S+",
    """
    ts.torch_handler.base_handler.BaseHandler ts.torch_handler.image_classifier.ImageClassifier
    ts.context.Context ts.handler_utils.timer.timed ts.metrics.dimension.Dimension
    ts.handler_utils.micro_batching.MicroBatching
    ts.handler_utils.utils.send_intermediate_predict_response
    ts.protocol.otf_message_handler.send_intermediate_predict_response ts.handler_utils.utils.import_class
    ts.utils.util.map_class_to_label ts.utils.util.list_classes_from_module
    ts.utils.util.load_label_mapping ts.utils.util.check_valid_pt2_backend ts.utils.util.CLEANUP_REGEX
    ts.utils.util.PredictionException ts.service.PredictionException
    ts.torch_handler.object_detector.ObjectDetector ts.torch_handler.vision_handler.VisionHandler
    ts.torch_handler.image_segmenter.ImageSegmenter ts.torch_handler.text_handler.TextHandler
    ts.torch_handler.text_classifier.TextClassifier ts.metrics.metric_type_enum.MetricTypes
    ts.metrics.metric.Metric ts.metrics.process_memory_metric.check_process_mem_usage
    ts.metrics.metrics_store.MetricsStore ts.metrics.unit.Units ts.metrics.caching_metric.CachingMetric
    ts.metrics.metric_cache_yaml_impl.MetricsCacheYamlImpl
    ts.metrics.metric_cache_errors.MetricsCacheValueError
    ts.metrics.metric_cache_errors.MetricsCacheKeyError ts.torch_handler.dali_handler
    ts.torch_handler.dali_image_classifier ts.torch_handler.distributed.base_pippy_handler
    ts.torch_handler.distributed.base_deepspeed_handler ts.handler_utils.distributed.pt_pippy
    ts.handler_utils.distributed.deepspeed ts.handler_utils.hf_batch_streamer.TextIteratorStreamerBatch
    ts.torch_handler.unit_tests.test_utils.mock_context.MockContext ts.torch_handler.vllm_handler.VLLMHandler
    ts.torch_handler.trt_llm_handler ts.torch_handler.densenet_handler.DenseNetHandler
    ts.torch_handler.contractions.CONTRACTION_MAP ts.service.Service ts.service.emit_metrics ts.arg_parser
    ts.model_server.start ts.metrics.system_metrics.collect_all ts.metrics.metric_collector
    ts.metrics.metric_encoder.MetricEncoder ts.model_loader ts.model_service.model_service.ModelService
    ts.model_service.model_service.SingleNodeService ts.launcher.start ts.launcher.stop
    ts.launcher.register_model ts.launcher.register_model_with_params ts.version.__version__
    ts.__version__ ts.utils.timeit_decorator.timeit ts.utils.hf_utils ts.llm_launcher.main
    ts.utils.util.PT2Backend ts.utils.util.get_yaml_config ts.utils.util.deprecated
    ts.handler_utils.text_utils.get_tokenizer ts.handler_utils.text_utils.ngrams_iterator
    ts.torch_handler.base_handler.setup_ort_session ts.torch_handler.base_handler.PROFILER_AVAILABLE
    ts.torch_handler.base_handler.XLA_AVAILABLE ts.torch_handler.base_handler.PT2_AVAILABLE
    ts.torch_handler.base_handler.PT230_AVAILABLE ts.torch_handler.base_handler.IPEX_AVAILABLE
    ts.torch_handler.base_handler.ONNX_AVAILABLE ts.torch_handler.request_envelope.base.BaseEnvelope
    ts.torch_handler.request_envelope.body.BodyEnvelope
    ts.torch_handler.request_envelope.json.JSONEnvelope
    ts.torch_handler.request_envelope.kserve.KServeEnvelope
    ts.torch_handler.request_envelope.kservev2.KServev2Envelope
    """,
)


def test_the_table_has_every_name_of_the_reference():
    """No name of reference 13 is left without a state."""
    assert set(SECTION_13) - {entry.name for entry in names()} == set()


def test_remarks_are_of_offered_names():
    there = set(offered())

    assert set(REMARKS) - there == set()
    assert set(LEFT_OUT) & there == set()
    assert {entry.state for entry in names()} == {"same", "better", "differs", "not offered"}
