import weakref

import pytest
import torch
from tests.handlers.parts import network

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.context import Context
from modelserver_handlers.densenet_handler import DenseNetHandler
from modelserver_handlers.errors import ModelLoadError, PredictionException
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.networks.device import give_back_memory
from modelserver_handlers.object_detector import ObjectDetector
from modelserver_handlers.text_classifier import TextClassifier

DOUBLE = network("Double", "x * self.factor", factor="nn.Parameter(torch.tensor(2.0))")


class Numbers(BaseHandler):
    """Rows are ``{"data": number}``; negative numbers are rejected."""

    def preprocess(self, data):
        accepted = []
        for idx, row in enumerate(data):
            if row["data"] < 0:
                self.context.reject(idx, "negative", 422)
            else:
                accepted.append(row["data"])
        return torch.tensor(accepted)

    def inference(self, data, *args, **kwargs):
        assert len(data)
        return data * 2


@pytest.fixture
def folder(tmp_path):
    """An eager model whose weights say 3, not 2."""
    (tmp_path / "double_model_file.py").write_text(DOUBLE)
    torch.save({"factor": torch.tensor(3.0)}, tmp_path / "triple.pth")
    return tmp_path


def numbers(*values):
    return [{"data": value} for value in values]


@pytest.fixture
def context(make_context, tmp_path):
    return make_context(tmp_path)


def test_eager_models_are_loaded(folder, make_context, begin):
    context = make_context(folder, modelFile="double_model_file.py", serializedFile="triple.pth")
    handler = BaseHandler()
    handler.initialize(context)
    begin(context, 2)

    assert handler.initialized
    assert (handler.map_location, handler.get_device()) == ("cpu", torch.device("cpu"))
    assert handler.model.training is False
    assert handler.model_pt_path == str(folder / "triple.pth")
    assert handler.mapping is None
    assert handler.handle([[1.0, 2.0], [3.0, 4.0]], context) == [[3.0, 6.0], [9.0, 12.0]]


@pytest.mark.parametrize(
    ("kind", "warns"),
    [
        (BaseHandler, False),
        (ImageSegmenter, False),
        (ImageClassifier, True),
        (DenseNetHandler, True),
        (ObjectDetector, True),
        (TextClassifier, True),
    ],
)
def test_missing_labels_are_reported_where_answers_have_some(kind, warns, tmp_path, caplog):
    assert kind()._ms_load_labels(str(tmp_path)) is None
    assert ("index_to_name.json is missing" in caplog.text) == warns

    (tmp_path / "index_to_name.json").write_text('{"0": "cat"}')
    assert kind()._ms_load_labels(str(tmp_path)) == {"0": "cat"}


def test_random_weights_are_reported(folder, make_context):
    class Loading(BaseHandler):
        def initialize(self, context):
            super().initialize(context)

    (folder / "relu_model_file.py").write_text("from torch.nn import ReLU\nclass Relu(ReLU): pass")
    warnings = []
    for handler, model in (
        (BaseHandler(), {"modelFile": "double_model_file.py"}),
        (BaseHandler(), {"modelFile": "double_model_file.py", "serializedFile": "triple.pth"}),
        (BaseHandler(), {"modelFile": "relu_model_file.py"}),
        (Loading(), {"modelFile": "double_model_file.py"}),
    ):
        context = make_context(folder, **model)
        handler.initialize(context)
        warnings.append(context._ms_warnings)

    assert warnings[1:] == [[], [], []]
    (warning,) = warnings[0]
    assert warning.startswith("The archive has no weights (--serialized-file)")
    assert "double_model_file.py" in warning


@pytest.mark.parametrize(
    ("serialized", "config", "message"),
    [
        *(
            (name, {}, r"^No model weights could be loaded: ")
            for name in (None, "weights.pth", "weights.bin", "library.so")
        ),
        ("model.so", {"pt2": {"export": {"aot_compile": True}}}, r"model\.so is not a library"),
    ],
)
def test_archives_without_a_model_are_refused(serialized, config, message, tmp_path, make_context):
    """The text is TorchServe's (F40). A ``.so`` is loaded only where ``pt2`` calls it a compiled model."""
    (tmp_path / "model.so").write_bytes(b"nothing")
    model = {"serializedFile": serialized} if serialized else {}

    with pytest.raises(ModelLoadError, match=message):
        BaseHandler().initialize(make_context(tmp_path, config, **model))
    with pytest.raises(ModelLoadError, match="No model weights could be loaded"):
        BaseHandler().initialize(Context("m", str(tmp_path), None, 1, None, "0.12.0"))


class Node:
    """Refers to itself, so that only the garbage collector frees it."""

    def __init__(self):
        self.own = self


@pytest.mark.usefixtures("collects_nothing")
def test_loading_gives_memory_back(folder, make_context, monkeypatch):
    monkeypatch.setattr("modelserver_handlers.base.give_back_memory", give_back_memory)
    remains = weakref.ref(Node())
    BaseHandler().initialize(make_context(folder, modelFile="double_model_file.py"))

    assert remains() is None


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_rejected_rows_leave_gaps(bad, context, begin):
    """One rejected row is left out of the tensor, its answer is None, its neighbours are answered (F18), and
    the phases are timed.
    """
    handler = Numbers()
    values = [1, 2, 3]
    values[bad] = -1
    expected = [2 * value for value in values]
    expected[bad] = None
    state = begin(context, 3)

    assert handler.handle(numbers(*values), context) == expected
    assert context._ms_rejections == {bad: (422, "negative")}
    assert all(seconds > 0 for seconds in state.phases)


def test_answers_of_another_number_stay(context, begin):
    """Gaps are filled only in a list of one answer per remaining row (F19)."""

    class Wrong(Numbers):
        def postprocess(self, data):
            return [*data.tolist(), 0]

    begin(context, 2)

    assert Wrong().handle(numbers(-1, 2), context) == [4, 0]


def test_describe_answers_without_the_model(context, begin):
    class Described(Numbers):
        def describe_handle(self):
            return {"takes": "numbers"}

    begin(context, 1, describe="True")

    assert Described().handle([{"body": b""}], context) == [{"takes": "numbers"}]


class Explained(Numbers):
    """Explains a row by what the explanation is made of."""

    def get_insights(self, tensor, inputs, target):
        return [(tensor.tolist(), inputs, target)] * len(tensor)


@pytest.mark.parametrize(
    ("targets", "requested"),
    [([None, None], 0), ([3, 3], 3), ([b"4", bytearray(b"4")], 4), ([1, 2], [1, 2]), (["5", None], [5, 0])],
)
def test_explanations_come_from_get_insights(targets, requested, context, begin):
    rows = [{"data": 1, "target": targets[0]}, {"data": 2, "target": targets[1]}]
    begin(context, 2, explain="True")

    assert Explained().handle(rows, context) == [([1, 2], 1, requested)] * 2


def test_explain_leaves_rejected_rows_out(context, begin):
    begin(context, 2, explain="True")
    rows = [{"data": -1, "target": 7}, {"data": 2, "target": 1}]

    assert Explained().handle(rows, context) == [None, ([2], 2, 1)]


def test_explanations_fail_with_a_status(context, begin):
    begin(context, 1, explain="True")
    with pytest.raises(PredictionException) as nothing:
        Numbers().handle(numbers(1), context)
    with pytest.raises(PredictionException) as wrong:
        Explained().handle([{"data": 1, "target": "cat"}], context)

    assert (nothing.value.error_code, wrong.value.error_code) == (501, 400)


def test_prediction_exceptions_read_as_torchserves():
    error = PredictionException("Too dark", 404)

    assert (error.message, error.error_code, str(error)) == ("Too dark", 404, "Too dark : 404")
    assert PredictionException("Broken").error_code == 500


def test_profiled_batches_are_answered(context, begin, monkeypatch):
    traces = []

    class Profiled(Numbers):
        def __init__(self):
            super().__init__()
            self.profiler_args = {"on_trace_ready": traces.append, "record_shapes": False}

    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "1")
    begin(context, 2)

    assert Profiled().handle(numbers(1, -1), context) == [2, None]
    assert len(traces) == 1
