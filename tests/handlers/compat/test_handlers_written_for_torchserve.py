"""Handlers as they are found in the wild, written for TorchServe (reference 12, 14.1)."""

import importlib
import itertools
import sys
from typing import Any

import pytest
import torch
from tests.handlers.parts import network

from modelserver.engine.worker.loader import load_handler
from modelserver.engine.worker.metrics import HandlerMetrics
from modelserver_handlers.compat import PATH
from modelserver_handlers.context import BatchState, Context

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

    def load_and_call(source: str, data: list[Any], *, config: Any = None, **properties: str) -> Any:
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


def measured(context: Context) -> list[tuple[str, float, str]]:
    return [(m.name, m.value, m.kind) for m in context.metrics.collect() or []]


ROWS = [[1.0], [2.0]]
TRIPLED = [[3.0], [6.0]]

OVERRIDES = {
    "with ABC": """
class H(BaseHandler, ABC):
    pass
""",
    "__init__": """
class H(BaseHandler, ABC):
    def __init__(self):
        super(H, self).__init__()
        assert self.initialized is False and self.model is None and self.profiler_args == {}
        self.extra = 1
""",
    "initialize with super": """
class H(BaseHandler):
    def initialize(self, ctx):
        super().initialize(ctx)
        assert self.initialized and self.map_location == 'cpu' and self.manifest is ctx.manifest
        assert self.get_device().type == 'cpu' and self.model_yaml_config == {}
        self.model.factor.data += 1
""",
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
    "preprocess with super": """
class H(BaseHandler):
    def preprocess(self, data):
        return super().preprocess(data) + 1
""",
    "inference": """
class H(BaseHandler):
    def inference(self, model_input):
        with torch.no_grad():
            return self.model(model_input) * 2
""",
    "inference with arguments": """
class H(BaseHandler):
    def inference(self, data, *args, **kwargs):
        return super().inference(data, 1, *args, **kwargs)
""",
    "postprocess": """
class H(BaseHandler):
    def postprocess(self, inference_output):
        return [{'v': row[0]} for row in super().postprocess(inference_output)]
""",
    "handle with super": """
class H(BaseHandler):
    def handle(self, data, context):
        return [row[0] for row in super().handle(data, context)]
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
    "no base class": """
class ModelHandler(object):
    def __init__(self):
        self._context = None
        self.initialized = False
    def initialize(self, context):
        self._context = context
        self.initialized = True
    def preprocess(self, data):
        return data
    def handle(self, data, context):
        return [row[0] for row in self.preprocess(data)]
""",
    "module functions": """
state = {}
def initialize(context):
    state['calls'] = state.get('calls', 0) + 1
def handle(data, context):
    if not state:
        initialize(context)
    if data is None:
        return None
    return [(row[0], state['calls']) for row in data]
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
    "all of the context": """
class H:
    def handle(self, data, context: Context):
        p = context.system_properties
        assert set(p) >= {'model_dir', 'gpu_id', 'batch_size', 'server_name', 'server_version'}
        assert p['model_dir'] == os.getcwd() and p['gpu_id'] is None and p['server_name'] == 'MMS'
        assert context.request_ids == {0: 'id-0', 1: 'id-1'}
        assert context.get_request_id(1) == 'id-1'
        assert context.get_request_header(0, 'X') == 'y'
        assert context.get_all_request_header(0)['x'] == 'y'
        assert context.get_sequence_id(0) is None
        assert context.manifest['model']['modelName'] == 'm'
        context.set_response_content_type(0, 'text/plain')
        assert context.get_response_content_type(0) == 'text/plain'
        context.set_response_header(1, 'a', 'b')
        assert context.get_response_headers(1) == {'a': 'b'}
        context.set_response_status(code=201, phrase='Made', idx=1)
        assert context.get_response_status(1) == (201, 'Made')
        context.set_all_response_status(202, 'Later')
        assert context.get_response_status(0) == (202, 'Later')
        processor = context.request_processor[0]
        assert processor.get_request_property('x') == 'y'
        processor.report_status(200)
        assert processor.get_response_status_code() == 200
        processor.add_response_property('k', 'v')
        assert processor.get_response_header('k') == 'v'
        assert processor.get_request_properties()['x'] == 'y'
        return [context.model_name] * len(data)
""",
}
EXPECTED = {
    "initialize with super": [[4.0], [8.0]],
    "preprocess with super": [[6.0], [9.0]],
    "inference": [[6.0], [12.0]],
    "inference with arguments": [[4.0], [7.0]],
    "postprocess": [{"v": 3.0}, {"v": 6.0}],
    "handle with super": [3.0, 6.0],
    "_load_pickled_model": [[6.0], [12.0]],
    "a second base": [[0.0], [0.0]],
    "no base class": [1.0, 2.0],
    "module functions": [(1.0, 1), (2.0, 1)],
    "attributes on the context": [2, 2],
    "all of the context": ["m", "m"],
}
"""What they answer where that is not ``TRIPLED``."""


@pytest.mark.parametrize("name", OVERRIDES)
def test_handlers_in_the_wild_answer(name, run):
    answers, _ = run(OVERRIDES[name], ROWS)

    assert answers == EXPECTED.get(name, TRIPLED)


EXPLAIN_HANDLE = """
class H(BaseHandler):
    def explain_handle(self, data_preprocess, raw_data):
        return [len(raw_data), data_preprocess.tolist()]
    def preprocess(self, data):
        return torch.tensor([row['data'] for row in data])
"""
OWN_SWITCHES = """
class H(BaseHandler):
    def _is_explain(self):
        return self.context.get_request_header(0, 'x') == 'y'
    def explain_handle(self, data_preprocess, raw_data):
        return ['explained']
"""


def test_explanations_call_the_handlers_methods(run):
    assert run(EXPLAIN_HANDLE, [{"data": [1.0]}, {"data": [2.0]}], explain="True")[0] == [2, [[1.0], [2.0]]]
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
