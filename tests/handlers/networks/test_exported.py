import ctypes
import math
import sys
import weakref
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks import exported as exported_module
from modelserver_handlers.networks.exported import (
    OnnxNetwork,
    fixed_rows,
    fixed_rows_of,
    in_parts,
    setup_ort_session,
)
from modelserver_handlers.networks.weights import load_exported


class Both(torch.nn.Module):
    """Two outputs with a row for each row of the two inputs."""

    def forward(self, x, y):
        return torch.relu(x), y + 1


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        ([(1, 3)], 1),
        ([(4, 3), (4,)], 4),
        ([("n", 3)], None),
        ([(None, 3)], None),
        ([(4, 3), (2,)], None),
        ([()], None),
        ([], None),
        ([(0, 3)], None),
    ],
)
def test_rows_are_fixed_by_shapes(shapes, rows):
    assert fixed_rows(shapes) == rows


@pytest.mark.parametrize("rows", [1, 3])
def test_any_number_of_rows_is_computed_by_a_program(tmp_path, rows):
    program = torch.export.export(Both(), (torch.zeros(rows, 2), torch.zeros(rows)))
    torch.export.save(program, tmp_path / "both.pt2")
    network = load_exported(tmp_path / "both.pt2", torch.device("cpu"))

    assert fixed_rows_of(network) == rows
    assert isinstance(network, torch.fx.GraphModule)
    for count in (1, 2, 3, 7):
        x, y = torch.randn(count, 2), torch.randn(count)
        first, second = network(x, y)
        assert torch.equal(first, torch.relu(x))
        assert torch.equal(second, y + 1)


@pytest.mark.parametrize(("rows", "warns"), [(4, True), (None, False)])
def test_the_description_warns(tmp_path, make_context, begin, rows, warns):
    dynamic = None if rows else ({0: torch.export.Dim("rows", min=2)},)
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(rows or 2, 1),), dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "relu.pt2")
    context = make_context(tmp_path, serializedFile="relu.pt2")
    handler = BaseHandler()
    handler.initialize(context)
    begin(context, 2)

    assert handler.handle([[-1.0], [3.0]], context) == [[0.0], [3.0]]
    expected = f"relu.pt2 was exported for batches of {rows}, and batch_size is 8"
    assert [expected in warning for warning in context._ms_warnings] == [True] * warns


def declaring(inputs, outputs=(), **more):
    """A session of onnxruntime with inputs and outputs, each a name, a type and a shape."""
    entries = [
        [SimpleNamespace(name=name, type=kind, shape=shape) for name, kind, shape in each]
        for each in (inputs, outputs)
    ]
    return SimpleNamespace(get_inputs=lambda: entries[0], get_outputs=lambda: entries[1], **more)


def test_any_number_of_rows_is_computed_by_an_onnx_model():
    def run(_, feed):
        assert feed["x"].shape == (2, 1)
        return [feed["x"] * 2]

    network = OnnxNetwork(declaring([("x", "tensor(float)", [2, 1])], run=run))

    assert fixed_rows_of(network) == 2
    assert network(torch.tensor([[1.0], [2.0], [3.0]])).tolist() == [[2.0], [4.0], [6.0]]


def test_only_rows_are_computed_in_parts():
    def run(x, *, y, factor):
        assert len(x) == len(y) == 2
        return {"sum": x + factor * y}

    outputs = in_parts(run, 2, (torch.arange(3),), {"y": torch.ones(3), "factor": 2})

    assert outputs["sum"].tolist() == [2, 3, 4]

    assert in_parts(torch.sum, 2, (torch.ones(2, 2),), {}) == 4
    with pytest.raises(ValueError, match="no row for each of the 2 rows"):
        in_parts(torch.sum, 2, (torch.ones(3, 2),), {})


@pytest.fixture
def model(tmp_path):
    """A folder with networks: ReLU, sum and difference of x and y, and the negation of booleans."""
    onnx = pytest.importorskip("onnx", reason="onnx makes the model of this test")
    pytest.importorskip("onnxruntime", reason="onnxruntime computes ONNX models")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    x, y, total, rest = (helper.make_tensor_value_info(n, kind, ["n", 2]) for n in ("x", "y", "sum", "rest"))
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Sub", ["x", "y"], ["rest"])]
    opset = [helper.make_opsetid("", 13)]
    relu = helper.make_graph([helper.make_node("Relu", ["x"], ["sum"])], "relu", [x], [total])
    both = helper.make_graph(nodes, "both", [x, y], [total, rest])
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, ["n"]) for name in ("x", "y"))
    negation = helper.make_graph([helper.make_node("Not", ["x"], ["y"])], "not", [x], [y])
    for name, graph in (("relu", relu), ("both", both), ("not", negation)):
        made = helper.make_model(graph, opset_imports=opset, ir_version=8)
        onnx.save(made, str(tmp_path / f"{name}.onnx"))
    return tmp_path


def served(context, begin, gpu=None):
    context.system_properties["gpu_id"] = gpu
    handler = BaseHandler()
    handler.initialize(context)
    begin(context, 2)
    assert handler.handle([[-1.0, 2.0], [3.0, -4.0]], context) == [[0.0, 2.0], [3.0, 0.0]]
    return handler


def test_a_model_is_served_by_the_base_handler(model, make_context, begin):
    """Better than TorchServe: an ``.onnx`` file needs no ``inference`` of one's own."""
    handler = served(make_context(model, serializedFile="relu.onnx"), begin)
    assert [entry.name for entry in handler.model.get_inputs()] == ["x"]


def test_outputs_are_a_tuple_computed_on_the_workers_cores(model):
    session = setup_ort_session(str(model / "both.onnx"), "cpu")
    network = OnnxNetwork(session)
    total, rest = network(torch.tensor([[1, 2]]), torch.tensor([[3.0, 5.0]], requires_grad=True))

    assert (total.tolist(), rest.tolist()) == ([[4.0, 7.0]], [[-2.0, -3.0]])
    with pytest.raises(TypeError, match=r"takes 2 inputs \(x, y\), got 1"):
        network(torch.zeros(1, 2))

    assert session.get_session_options().intra_op_num_threads == torch.get_num_threads()


def test_files_that_are_no_model_and_a_missing_runtime_are_named(model, monkeypatch):
    (model / "broken.onnx").write_bytes(b"nothing")

    with pytest.raises(ModelLoadError, match=r"Missing the none\.onnx file"):
        setup_ort_session(str(model / "none.onnx"), None)
    with pytest.raises(ModelLoadError, match=r"broken\.onnx is not an ONNX model"):
        setup_ort_session(str(model / "broken.onnx"), None)

    monkeypatch.setattr(exported_module, "ONNX_AVAILABLE", False)
    with pytest.raises(ModelLoadError, match=r"broken\.onnx needs onnxruntime.*pip install onnxruntime"):
        setup_ort_session(str(model / "broken.onnx"), None)


class GpuRuntime:
    """onnxruntime for GPUs, played by the one for processors; ``used`` are the providers of its sessions."""

    def __init__(self, available, used):
        self._real = import_module("onnxruntime")
        self._available = list(available)
        self.used = list(used)
        self.providers = []
        self.inputs = []
        self.outputs = []
        self.SessionOptions = self._real.SessionOptions

    def get_available_providers(self):
        return self._available

    def InferenceSession(self, path, sess_options, providers):  # noqa: N802 - its name
        self.providers = providers
        return GpuSession(self._real.InferenceSession(path, sess_options, ["CPUExecutionProvider"]), self)


class GpuSession:
    """A session whose tensors are bound, never copied."""

    def __init__(self, real, runtime):
        self._real = real
        self._runtime = runtime
        self.get_inputs, self.get_outputs = real.get_inputs, real.get_outputs

    def get_providers(self):
        return self._runtime.used

    def io_binding(self):
        return GpuBinding(self._real.io_binding(), self._runtime)

    def run_with_iobinding(self, binding):
        self._real.run_with_iobinding(binding.real)


class GpuBinding:
    """Records which memory of which GPU is bound."""

    def __init__(self, real, runtime):
        self.real = real
        self._runtime = runtime
        self.synchronize_outputs, self.get_outputs = real.synchronize_outputs, real.get_outputs

    def bind_input(self, name, kind, number, *rest):
        self._runtime.inputs.append((name, kind, number, *rest[1:]))
        self.real.bind_input(name, "cpu", 0, *rest)

    def bind_output(self, name, kind, number):
        self._runtime.outputs.append((name, kind, number))
        self.real.bind_output(name, "cpu", 0)


ON_GPU = ("CUDAExecutionProvider", "CPUExecutionProvider")
SECOND = torch.device("cuda", 1)


def shared(place):
    """What torch makes of memory on a GPU, of memory on the processor."""
    memory = place.__cuda_array_interface__
    kind, shape = np.dtype(memory["typestr"]), memory["shape"]
    size = math.prod(shape) * kind.itemsize
    content = (ctypes.c_byte * size).from_address(memory["data"][0])
    tensor = torch.from_numpy(np.frombuffer(content, kind).reshape(shape))
    # torch's tensors keep the object.
    weakref.finalize(tensor, lambda _stored: None, place)
    return tensor


@pytest.fixture
def runtime(model, gpus, monkeypatch):
    """It works, on two GPUs."""
    assert model.is_dir()
    gpus.count = 2
    made = GpuRuntime(ON_GPU, ON_GPU)
    as_tensor = torch.as_tensor

    def take(data, *args, **kwargs):
        return shared(data) if hasattr(data, "__cuda_array_interface__") else as_tensor(data, *args, **kwargs)

    monkeypatch.setattr(torch, "as_tensor", take)
    monkeypatch.setitem(sys.modules, "onnxruntime", made)
    return made


def test_the_session_is_on_the_workers_gpu(runtime, model, make_context, begin):
    """cuDNN does not try all of its algorithms while requests wait. TorchServe's function has no argument for
    the GPU: without one, it is that of torch.
    """
    assert served(make_context(model, serializedFile="relu.onnx"), begin, gpu=1)
    assert runtime.providers == [
        ("CUDAExecutionProvider", {"device_id": 1, "cudnn_conv_algo_search": "HEURISTIC"}),
        "CPUExecutionProvider",
    ]
    for number in (0, 1):
        torch.cuda.set_device(number)
        setup_ort_session(str(model / "relu.onnx"), "cuda")
        assert runtime.providers[0][1]["device_id"] == number


def test_tensors_on_the_gpu_stay_there(runtime, gpus, model):
    network = OnnxNetwork(setup_ort_session(str(model / "both.onnx"), "cuda", 1), SECOND)
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]])
    total, rest = network(x, y)
    network(y, y)

    assert (total.tolist(), rest.tolist()) == ([[4.0, 7.0]], [[-2.0, -3.0]])
    assert runtime.inputs[:2] == [
        ("x", "cuda", 1, (1, 2), x.data_ptr()),
        ("y", "cuda", 1, (1, 2), y.data_ptr()),
    ]
    assert runtime.outputs[:2] == [("sum", "cuda", 1), ("rest", "cuda", 1)]
    assert gpus.calls.count("current_stream") == 2


@pytest.mark.usefixtures("runtime")
def test_bound_tensors_may_have_other_types_and_strides(model):
    network = OnnxNetwork(setup_ort_session(str(model / "both.onnx"), "cuda", 1), SECOND)
    turned = torch.tensor([[1, 2], [3, 4], [5, 6]]).double().t().contiguous().t()
    total, _ = network(turned, torch.ones(3, 4)[:, ::2])

    assert total.tolist() == [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    assert total.dtype == torch.float32

    negation = OnnxNetwork(setup_ort_session(str(model / "not.onnx"), "cuda", 1), SECOND)
    outputs = negation(torch.tensor([True, False]))
    assert (outputs.dtype, outputs.tolist()) == (torch.bool, [False, True])


@pytest.mark.parametrize(
    ("available", "used", "message"),
    [
        (ON_GPU[1:], ON_GPU[1:], r"relu\.onnx .*GPU.*pip install onnxruntime-gpu.*deviceType: cpu"),
        (ON_GPU, ON_GPU[1:], r"relu\.onnx .*GPU.*names the library of CUDA or cuDNN.*deviceType: cpu"),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_onnxruntime_without_the_gpu_does_not_load(
    available, used, message, model, monkeypatch, make_context
):
    runtime = GpuRuntime(available, used)
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    context = make_context(model, serializedFile="relu.onnx")
    context.system_properties["gpu_id"] = 0

    with pytest.raises(ModelLoadError, match=message):
        BaseHandler().initialize(context)
    context.system_properties["gpu_id"] = None
    BaseHandler().initialize(context)


@pytest.mark.parametrize(("warmup", "sizes"), [(True, [8, 1, 4, 2]), (False, [])])
def test_models_are_warmed_up(warmup, sizes, runtime, model, make_context):
    context = make_context(model, {"handler": {"warmup": warmup}}, serializedFile="relu.onnx")
    context.system_properties["gpu_id"] = 0
    BaseHandler().initialize(context)

    assert [shape for _, _, _, shape, _ in runtime.inputs] == [(size, 2) for size in sizes]


@pytest.mark.parametrize(
    ("shapes", "kind", "expected"),
    [
        ([["n", 3, 8]], "tensor(float)", (3, 8)),
        ([[4]], "tensor(float16)", ()),
        ([["n", 3, "width"]], "tensor(float)", None),
        ([["n", None]], "tensor(float)", None),
        ([["n", 3]], "tensor(int64)", None),
        ([["n", 3]], "tensor(string)", None),
        ([["n", 3], ["n", 3]], "tensor(float)", None),
        ([], "", None),
    ],
)
def test_shapes_of_rows_are_known(shapes, kind, expected):
    assert OnnxNetwork(declaring([("x", kind, shape) for shape in shapes])).row_shape() == expected


class Own(BaseHandler):
    def preprocess(self, data):
        return data


class Counting(BaseHandler):
    def postprocess(self, data):
        return [len(data)]


@pytest.fixture
def exported(tmp_path):
    """A program with two inputs and outputs, saved and loaded; the rows are of any number."""
    rows = torch.export.Dim("rows")
    example = torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    program = torch.export.export(Both(), example, dynamic_shapes=({0: rows}, {0: rows}))
    torch.export.save(program, tmp_path / "both.pt2")
    return load_exported(tmp_path / "both.pt2", torch.device("cpu"))


def signature(kind, network):
    handler = kind()
    handler.model = network
    return handler._ms_signature()


def test_programs_and_graphs_declare_their_tensors(exported):
    picture, label = ("picture", "tensor(float)", ["n", 3, None, 8]), ("label", "tensor(int64)", ["n"])
    program = signature(BaseHandler, exported)
    graph = signature(BaseHandler, OnnxNetwork(declaring([picture], [label])))

    assert program.inputs.tensors == (("x", "FP32", (-1, 3)), ("y", "INT64", (-1,)))
    assert program.outputs.tensors == (("output_0", "FP32", (-1, 3)), ("output_1", "INT64", (-1,)))
    assert graph.inputs.tensors == (("picture", "FP32", (-1, 3, -1, 8)),)
    assert graph.outputs.tensors == (("output_0", "INT64", (-1,)),)


def test_a_handler_of_ones_own_declares_nothing_of_it(exported):
    assert signature(Own, exported) is None
    assert signature(Counting, exported).outputs.tensors == ()
    assert signature(BaseHandler, torch.nn.Linear(1, 1)) is None
