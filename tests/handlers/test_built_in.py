"""The built-in handlers by their names, the names that they leave to users, and what importing costs."""

import json
import subprocess
import sys

import pytest
import torch
from tests.handlers.parts import network

from modelserver_handlers import BUILT_IN
from modelserver_handlers.base import BaseHandler
from modelserver_handlers.context import Context
from modelserver_handlers.densenet_handler import DenseNetHandler
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.loader import load_handler
from modelserver_handlers.object_detector import ObjectDetector
from modelserver_handlers.text_classifier import TextClassifier

SOURCE = network("Three", "self.layer(pictures.mean((2, 3)))", "pictures", layer="nn.Linear(3, 3)")


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_is_loaded_by_its_name(name, tmp_path):
    for handler in (name, f"{name}.py"):
        loaded = load_handler(handler, tmp_path)
        assert loaded.built_in
        assert callable(loaded.initialize)


@pytest.mark.parametrize("kind", [ImageClassifier, DenseNetHandler])
def test_few_classes_are_all_answered(kind, tmp_path, make_context, begin, pictures):
    """A network of three classes answers three (TorchServe fails), or as many as ``topk`` says."""
    name = f"three_{tmp_path.name.replace('-', '_')}.py"
    (tmp_path / name).write_text(SOURCE)
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "a", "1": "b", "2": "c"}))
    for config, count in (({}, 3), ({"handler": {"topk": 2}}, 2)):
        handler = kind()
        handler.initialize(
            make_context(tmp_path, {"warmup": False, "optimize": "off", **config}, modelFile=name)
        )
        begin(handler.context, 2)

        answers = handler.handle([{"data": file} for file in pictures[:2]], handler.context)

        assert [len(answer) for answer in answers] == [count] * 2
        prepared = handler.preprocess([pictures[0]])
        with torch.inference_mode():
            scores = handler.model(prepared).softmax(1)[0].tolist()
        best = sorted(zip(scores, "abc", strict=True), reverse=True)[:count]
        assert list(answers[0].items()) == [(label, pytest.approx(score, abs=1e-5)) for score, label in best]


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
# Methods that modelserver adds for handlers, documented in docs/torchserve-handlers.md.
OURS = """
    pipelined picture_mode cleaned_words get_request_parameters set_response_parameter reject
    is_cancelled
"""


@pytest.mark.parametrize(
    "cls", [BaseHandler, ImageClassifier, ImageSegmenter, ObjectDetector, TextClassifier, Context]
)
def test_nothing_of_ours_is_in_the_way(cls):
    made = Context("m", "/", None, 1, None, "0") if cls is Context else cls()
    names = {name for each in cls.__mro__ if each is not object for name in vars(each)} | set(vars(made))
    private = {name for name in names if name.startswith(("__", "_ms_", "_abc_"))}

    assert names - private - set(TORCHSERVE.split()) - set(OURS.split()) == set()


def test_context_needs_neither_torch_nor_pillow():
    script = (
        "import sys, modelserver_handlers, modelserver_handlers.context, modelserver_handlers.errors,"
        " modelserver_handlers.labels, modelserver_handlers.envelopes, modelserver_handlers.tensor_rows as t;"
        " t.TensorRows([], {}); print({'torch', 'PIL', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr.strip()) == ("set()", "")
