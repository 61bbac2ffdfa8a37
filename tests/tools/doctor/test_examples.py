"""Every built-in handler and every example passes the check: some always, all with the long tests."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.doctor.doctor import CheckOptions, examine
from modelserver.tools.doctor.samples import JSON, TEXT, InputRow, read_samples
from modelserver_handlers import BUILT_IN
from modelserver_handlers.networks.modules import import_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_ROOT = Path(__file__).parents[3]
_EXAMPLES = _ROOT / "examples"
_LABELS = '{"0": "nothing", "1": "something", "2": "a thing", "3": "more", "4": "most"}'
# Seeded, as the worker makes the weights.
_NETWORKS = """
import torch
from torch import nn

torch.manual_seed(0)


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential({layers})

    def forward(self, rows):
        return {outputs}
"""
_OF_PICTURES = "nn.Conv2d(3, 5, 3, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten()"
_SOURCES = {
    "classes": _NETWORKS.format(name="Classes", layers=_OF_PICTURES, outputs="self.layers(rows)"),
    "pixels": _NETWORKS.format(
        name="Pixels", layers="nn.Conv2d(3, 5, 3, 1, 1)", outputs="{'out': self.layers(rows)}"
    ).replace("{{", "{"),
    "numbers": _NETWORKS.format(name="Numbers", layers="nn.Linear(2, 3)", outputs="self.layers(rows)"),
}
_PICTURES = read_samples([_EXAMPLES / "mnist" / "digit-2.png", _EXAMPLES / "detector" / "shapes.png"], None)
# It shows a handler as it is written for TorchServe, which leaves bad pictures to the server.
# The detector is packed without its weights: each worker makes some.
_WARNINGS = {"resnet152": {"bad-row-retried", "empty-body"}, "detector": {"workers-differ"}}
# The others take minutes: only with MODELSERVER_LONG_TESTS=1.
_LONG = bool(os.environ.get("MODELSERVER_LONG_TESTS"))
_ALWAYS = {"mnist", "rollouts", "streaming"}
# Two hundred calls take long, so that memory is watched in one of them.
_WATCHED = {"rollouts"}
_NUMBERS = [InputRow("a", b"[1.0, 2.0]", JSON), InputRow("b", b"[0.5, -1.0]", JSON)]
_WORDS = [InputRow("a", b'{"words": 5, "seed": 3}', JSON), InputRow("b", b'{"words": 9, "seed": 4}', JSON)]
_TEXTS = [InputRow("a", b"a great dog", TEXT), InputRow("b", b"an awful cat", TEXT)]
_ADDENDS = [InputRow("a", b"1", JSON), InputRow("b", b"2.5", JSON)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    for name, source in _SOURCES.items():
        (store / f"{name}.py").write_text(source)
    (store / "index_to_name.json").write_text(_LABELS)

    def packed(name, handler, network=None, samples=(), **more):
        config = ArchiveConfig(name, str(handler), "1.0", model_file=network, export_path=store, **more)
        return CheckOptions(str(build_archive(config)), samples=samples)

    labels = str(store / "index_to_name.json")
    classes, shapes = store / "classes.py", _EXAMPLES / "detector"
    summing = _EXAMPLES / "stateful" / "sum_handler.py"
    babbling = _EXAMPLES / "streaming" / "babble_handler.py"
    resnet = _EXAMPLES / "resnet152" / "batching_handler.py"
    wishes = {
        "mnist": CheckOptions(str(_ROOT / "model_store" / "mnist.mar")),
        "detector": packed(
            "shapes", "object_detector", shapes / "shape_model.py", config_file=shapes / "model-config.yaml"
        ),
        "resnet152": packed("batching", resnet, classes, _PICTURES, extra_files=labels),
        "stateful": packed(
            "sum", summing, samples=_ADDENDS, config_file=summing.with_name("model-config.yaml")
        ),
        "streaming": packed(
            "babble", babbling, samples=_WORDS, extra_files=str(babbling.with_name("text.txt"))
        ),
        "rollouts": CheckOptions(str(_EXAMPLES / "rollouts" / "moods.py"), samples=_TEXTS),
        "workflow": CheckOptions(str(_EXAMPLES / "workflow" / "kind.py"), samples=_TEXTS),
        "workflow, mood": CheckOptions(str(_EXAMPLES / "workflow" / "mood.py"), samples=_TEXTS),
        "image_classifier": packed("image", "image_classifier", classes, extra_files=labels),
        "densenet_handler": packed("dense", "densenet_handler", classes, extra_files=labels),
        "image_segmenter": packed("segments", "image_segmenter", store / "pixels.py"),
        "base_handler": packed("base", "base_handler", store / "numbers.py", _NUMBERS),
    }
    if _LONG:  # Both are trained.
        wishes["text"] = CheckOptions(str(mood(store)))
        wishes["tabular"] = CheckOptions(str(table(store)), samples=_NUMBERS)
    with ThreadPoolExecutor(2) as executor, pytest.MonkeyPatch.context() as patch:
        # Two at a time.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.setenv(name, "1")
        names = [name for name in wishes if name in _ALWAYS or _LONG]
        wished = [wishes[name] if name in _WATCHED else replace(wishes[name], calls=0) for name in names]
        return dict(zip(names, executor.map(examine, wished), strict=True))


def table(folder):
    import skops.io
    from sklearn.linear_model import LinearRegression

    path = folder / "table.skops"
    skops.io.dump(LinearRegression().fit([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [1.0, 2.0, 3.0]), path)
    return path


def mood(folder):
    before = set(sys.modules)
    sys.path.insert(0, str(_EXAMPLES / "text"))
    try:
        build = import_file(_EXAMPLES / "text" / "build.py")
        vocabulary = build.make_vocabulary()
        return build.pack(build.train(vocabulary, 3, 0), vocabulary, folder)
    finally:
        sys.path.remove(str(_EXAMPLES / "text"))
        for name in set(sys.modules) - before:
            # Modules of libraries cannot be imported twice.
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(_EXAMPLES)):
                del sys.modules[name]


@pytest.mark.parametrize(
    "name", [*sorted(path.parent.name for path in _EXAMPLES.glob("*/README.md")), "workflow, mood"]
)
def test_examples_pass_the_check(name, reports):
    check(name, reports)


@pytest.mark.parametrize("name", sorted(BUILT_IN.keys() - {"vllm_handler"}))
def test_built_in_handlers_pass_the_check(name, reports):
    example = {"object_detector": "detector", "text_classifier": "text"}.get(name, name)
    check(example, reports)


def check(name, reports):
    """Asserts that there is no error, only the known warnings, and that answers and memory were looked at."""
    if name not in reports:
        pytest.skip("only with MODELSERVER_LONG_TESTS=1")
    report = reports[name]
    result = {each.id: each.seen for each in report.findings if each.level != "advice"}

    assert result.keys() == _WARNINGS.get(name, set()), result
    assert report.count("error") == 0
    assert any(each.startswith("answers in batches of 2 and") for each in report.checked)
    watched = "memory, threads and processes after 200 calls" in report.checked
    assert watched == (name in _WATCHED)
