"""Handlers as they are found in the wild, written for TorchServe (reference 12, 14.1). Others are compared
with TorchServe itself: the chapters ``networks``, ``styles`` and ``facts`` of ``tests/differential``.
"""

import importlib
import itertools
import sys

import pytest
import torch
from tests.handlers.parts import network

from modelserver_handlers.compat import PATH
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.loader import load_handler
from modelserver_handlers.metrics.collected import HandlerMetrics

_numbers = itertools.count()

MODEL = network("Triple", "x * self.factor + extra", "x, extra=0", factor="nn.Parameter(torch.tensor(1.0))")

IMPORTS = """
from abc import ABC
import logging
import os
import torch
from ts.torch_handler.base_handler import BaseHandler
from ts.handler_utils.timer import timed
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.handler_utils.micro_batching import MicroBatching
from ts.utils.util import list_classes_from_module, load_label_mapping, map_class_to_label
from ts.context import Context
logger = logging.getLogger(__name__)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Loads a handler from its source as a worker does, and gives it a batch; returns answers and context."""
    (tmp_path / "triple_model.py").write_text(MODEL)
    torch.save({"factor": torch.tensor(3.0)}, tmp_path / "weights.pth")
    monkeypatch.syspath_prepend(PATH)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)

    def load_and_call(source, data, *, config=None, **properties):
        name = f"wild_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(IMPORTS + source)
        importlib.invalidate_caches()
        files = {"modelFile": "triple_model.py", "serializedFile": "weights.pth"}
        manifest = {"model": {"modelName": "m", **files}}
        context = Context("m", str(tmp_path), manifest, 8, None, "0.12.0", model_yaml_config=config)
        context.metrics = HandlerMetrics("m")
        context._ms_begin(BatchState())
        handler = load_handler(f"{name}.py", tmp_path)
        handler.initialize(context)
        ids = [f"id-{number}" for number in range(len(data))]
        own = {"explain": "False", "url_path": "", **properties}
        context._ms_begin(BatchState(ids, [{"x": "y"}] * len(data), properties=[own] * len(data)))
        context.metrics.set_request_ids(dict(enumerate(ids)))
        return handler.entry(data, context), context

    yield load_and_call
    for name in set(sys.modules) - before:
        if name.startswith(("wild_", "ts", "triple_model")):
            del sys.modules[name]


def measured(context):
    return [(m.name, m.value, m.kind) for m in context.metrics.collect() or []]


ROWS = [[1.0], [2.0]]
TRIPLED = [[3.0], [6.0]]

OVERRIDES = {
    "initialize without super": """
class H(BaseHandler):
    def initialize(self, context):
        properties = context.system_properties
        self.manifest = context.manifest
        on_gpu = torch.cuda.is_available() and properties.get('gpu_id') is not None
        self.device = torch.device('cuda:' + str(properties.get('gpu_id')) if on_gpu else 'cpu')
        path = os.path.join(properties.get('model_dir'), self.manifest['model']['serializedFile'])
        self.model = self._load_pickled_model(properties['model_dir'], 'triple_model.py', path)
        self.initialized = True
""",
    "inference": """
class H(BaseHandler):
    def inference(self, model_input):
        with torch.no_grad():
            return self.model(model_input) * 2
""",
    "_load_pickled_model": """
class H(BaseHandler):
    def _load_pickled_model(self, model_dir, model_file, model_pt_path):
        model = super()._load_pickled_model(model_dir, model_file, model_pt_path)
        model.factor.data *= 2
        return model
""",
    "a second base": """
class Helper:
    def preprocess(self, data):
        return super().preprocess(data) * 0
class H(Helper, BaseHandler):
    pass
""",
    "micro batching by configuration": """
class H(BaseHandler):
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self)
    def initialize(self, ctx):
        super().initialize(ctx)
        micro = ctx.model_yaml_config.get('micro_batching', {'micro_batch_size': 2})
        self.handle.micro_batch_size = micro['micro_batch_size']
        self.handle.parallelism = micro.get('parallelism', {})
""",
    "_service in four steps": """
class Service(BaseHandler):
    pass
_service = Service()
def handle(data, context):
    try:
        if not _service.initialized:
            _service.initialize(context)
        if data is None:
            return None
        data = _service.preprocess(data)
        data = _service.inference(data)
        return _service.postprocess(data)
    except Exception as e:
        raise e
""",
    "attributes on the context": """
class H(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        context.cache = {'seen': 0}
    def preprocess(self, data):
        self.context.cache['seen'] += len(data)
        self.context.stopping_criteria = [lambda: True]
        return super().preprocess(data)
    def postprocess(self, data):
        return [self.context.cache['seen']] * len(data)
""",
    "processors of requests": """
class H:
    def handle(self, data, context: Context):
        assert context.request_ids == {0: 'id-0', 1: 'id-1'}
        processor = context.request_processor[0]
        processor.report_status(200)
        assert processor.get_response_status_code() == 200
        processor.add_response_property('k', 'v')
        assert processor.get_response_header('k') == 'v'
        assert processor.get_request_properties()['x'] == 'y'
        return [context.model_name] * len(data)
""",
}
EXPECTED = {
    "inference": [[6.0], [12.0]],
    "_load_pickled_model": [[6.0], [12.0]],
    "a second base": [[0.0], [0.0]],
    "attributes on the context": [2, 2],
    "processors of requests": ["m", "m"],
}
"""What they answer where that is not ``TRIPLED``."""


@pytest.mark.parametrize("name", OVERRIDES)
def test_handlers_in_the_wild_answer(name, run):
    answers, _ = run(OVERRIDES[name], ROWS)
    assert answers == EXPECTED.get(name, TRIPLED)


OWN_SWITCHES = """
class H(BaseHandler):
    def _is_explain(self):
        return self.context.get_request_header(0, 'x') == 'y'
    def explain_handle(self, data_preprocess, raw_data):
        return ['explained']
"""


def test_a_handler_may_decide_what_is_explained(run):
    assert run(OWN_SWITCHES, [[1.0]])[0] == ["explained"]


TIMED = """
class H(BaseHandler):
    @timed
    def preprocess(self, data):
        return super().preprocess(data)
    @timed
    def inference(self, data):
        return super().inference(data)
    @timed
    def postprocess(self, data):
        return super().postprocess(data)
"""
IN_PARTS = """
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self, 1)
"""


def test_timed_methods_report_their_time(run):
    _, context = run(TIMED, ROWS, config={"handler": {"profile": True}})
    _, parted_context = run(TIMED + IN_PARTS, ROWS, config={"handler": {"profile": True}})

    steps = [f"ts_handler_{step}" for step in ("preprocess", "inference", "postprocess")]
    assert [name for name, _, _ in measured(context)] == steps
    assert sorted(name for name, _, _ in measured(parted_context)) == sorted(steps * 2)
