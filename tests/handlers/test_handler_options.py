import pytest
import yaml

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.handler_options import (
    NetworkOptions,
    VisionOptions,
    handler_settings,
    probability,
    whole_number,
)


@pytest.mark.parametrize("document", [{}, {"handler": None}, {"handler": "x"}, {"handler": ["a"]}])
def test_only_a_mapping_counts(document):
    assert handler_settings({"handler": {"a": 1}}) == {"a": 1}
    assert handler_settings(document) == {}


def test_values_replace_defaults():
    assert (whole_number({}, "k", 5), whole_number({"k": 2}, "k", 5)) == (5, 2)
    assert (probability({}, "k", 0.5), probability({"k": 1}, "k", 0.5)) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("read", "values", "message"),
    [
        (whole_number, [0, -1, 1.0, True, "2", None, [1]], "a whole number of at least 1"),
        (probability, [-0.1, 1.1, True, "0.5", None, float("nan")], "a number from 0 to 1"),
    ],
)
def test_wrong_numbers_are_refused(read, values, message):
    for value in values:
        with pytest.raises(ModelLoadError, match=f"handler: k must be {message}"):
            read({"k": value}, "k", 1)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", NetworkOptions()),
        ("optimize: off", NetworkOptions(optimize=False)),
        ("optimize: auto", NetworkOptions(optimize_requested=True)),
        ("handler: {optimize: 'off', precision: bf16}", NetworkOptions(optimize=False, precision="bf16")),
        ("precision: bfloat16", NetworkOptions(precision="bf16")),
        ("precision: bf16\nhandler: {precision: fp32}", NetworkOptions(tf32=False)),
        ("precision: tf32", NetworkOptions(tf32=True)),
        (
            "handler: {precision: int8, calibration: samples/*.jpg}",
            NetworkOptions(precision="int8", calibration="samples/*.jpg"),
        ),
        ("handler: {warmup: false}", NetworkOptions(warmup=False)),
        ("warmup: {shape: [3, 32, 32]}", NetworkOptions(shape=(3, 32, 32))),
        ("handler: a name", NetworkOptions()),
    ],
)
def test_options_of_networks_are_read(text, options):
    assert NetworkOptions.parse(yaml.safe_load(text) or {}) == options


@pytest.mark.parametrize(
    ("kind", "documents", "message"),
    [
        (NetworkOptions, [{"optimize": "fast"}], "optimize must be one of auto, on, off, got 'fast'"),
        (NetworkOptions, [{"handler": {"precision": "int4"}}], "one of fp32, tf32, bf16, int8, float32"),
        (
            NetworkOptions,
            [{"handler": {"calibration": name}} for name in (3, "", ["a"])],
            "calibration must be the name of a file or folder",
        ),
        (NetworkOptions, [{"warmup": w} for w in ({"shape": [3, 0]}, {"sizes": [3]}, 3)], "warmup must be"),
        (VisionOptions, [{"decode": "gpu"}, {"decode": None}], "decode must be cpu or nvjpeg"),
        (VisionOptions, [{"fast_decode": "yes"}], "fast_decode must be true or false"),
        (VisionOptions, [{"cuda_graphs": 1}], "cuda_graphs must be true or false"),
    ],
)
def test_malformed_options_stop_the_load(kind, documents, message):
    for document in documents:
        with pytest.raises(ModelLoadError, match=message):
            kind.parse(document)


def test_each_key_sets_its_option():
    settings = {"decode": "nvjpeg", "fast_decode": True, "cuda_graphs": True}

    assert VisionOptions.parse({"topk": 3}) == VisionOptions("cpu", fast_decode=False, cuda_graphs=False)
    assert VisionOptions.parse(settings) == VisionOptions("nvjpeg", fast_decode=True, cuda_graphs=True)
