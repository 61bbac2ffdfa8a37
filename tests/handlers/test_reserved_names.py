"""Names that handlers of users may use for themselves."""

from __future__ import annotations

from typing import Any

import pytest

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.context import Context
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.object_detector import ObjectDetector
from modelserver_handlers.text_classifier import TextClassifier

# TorchServe's own (reference 12.4 and 14), which handlers know and override.
TORCHSERVE = """
    _request_processor _system_properties context device explain initialized manifest map_location
    mapping model model_pt_path model_yaml_config profiler_args target initialize handle preprocess
    inference postprocess explain_handle describe_handle get_device get_insights _load_pickled_model
    _load_torchscript_model _load_torch_export_aot_compile _use_torch_export_aot_compile _is_explain
    _is_describe _infer_with_profiler image_processing ig lig topk set_max_result_classes
    get_max_result_classes threshold ngrams source_vocab tokenizer input_text get_source_vocab_path
    _remove_html_tags _expand_contractions _remove_accented_characters _remove_punctuation
    _remove_puncutation _tokenize get_word_token summarize_attributions model_name system_properties
    request_ids request_processor metrics stopping_criteria cl_socket header_key_sequence_id
    header_key_sequence_start header_key_sequence_end get_request_id get_request_header
    get_all_request_header set_response_content_type get_response_content_type set_response_status
    set_all_response_status get_response_status set_response_header get_response_headers
    get_sequence_id
"""
# What we add for handlers to use, documented in docs/handlers.md.
OURS = """
    pipelined picture_mode cleaned_words get_request_parameters set_response_parameter reject
    is_cancelled
"""


@pytest.mark.parametrize(
    "cls", [BaseHandler, ImageClassifier, ImageSegmenter, ObjectDetector, TextClassifier, Context]
)
def test_nothing_of_ours_is_in_the_way(cls: type[Any]) -> None:
    """Whatever a handler written for TorchServe calls its methods and attributes, none of ours is hit."""
    made = Context("m", "/", None, 1, None, "0") if cls is Context else cls()
    names = {name for each in cls.__mro__ if each is not object for name in vars(each)} | set(vars(made))
    private = {name for name in names if name.startswith(("__", "_ms_", "_abc_"))}

    assert names - private - set(TORCHSERVE.split()) - set(OURS.split()) == set()
