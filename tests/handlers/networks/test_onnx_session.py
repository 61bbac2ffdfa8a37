"""ONNX models; with onnxruntime, which these tests need to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks import onnx_session
from modelserver_handlers.networks.onnx_session import OnnxNetwork, setup_ort_session

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with ``add.onnx``: the sum of x and y, and their difference if ``two``."""
    onnx = pytest.importorskip("onnx", reason="onnx makes the model of this test")
    pytest.importorskip("onnxruntime", reason="onnxruntime computes ONNX models")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    x, y, total, rest = (helper.make_tensor_value_info(n, kind, ["n", 2]) for n in ("x", "y", "sum", "rest"))
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Sub", ["x", "y"], ["rest"])]
    opset = [helper.make_opsetid("", 13)]
    relu = helper.make_graph([helper.make_node("Relu", ["x"], ["sum"])], "relu", [x], [total])
    both = helper.make_graph(nodes, "both", [x, y], [total, rest])
    for name, graph in (("relu", relu), ("both", both)):
        made = helper.make_model(graph, opset_imports=opset, ir_version=8)
        onnx.save(made, str(tmp_path / f"{name}.onnx"))
    return tmp_path


def test_a_model_is_served_by_the_base_handler(model: Path, make_context: Any, begin: Any) -> None:
    """Better than TorchServe: an ``.onnx`` file needs no ``inference`` of one's own."""
    context = make_context(model, serializedFile="relu.onnx")
    handler = BaseHandler()
    handler.initialize(context)
    begin(context, 2)

    assert handler.handle([[-1.0, 2.0], [3.0, -4.0]], context) == [[0.0, 2.0], [3.0, 0.0]]
    assert [entry.name for entry in handler.model.get_inputs()] == ["x"]


def test_several_inputs_and_outputs(model: Path) -> None:
    """Inputs in order, of any type that can be converted; several outputs are a tuple."""
    network = OnnxNetwork(setup_ort_session(str(model / "both.onnx"), "cpu"))
    total, rest = network(torch.tensor([[1, 2]]), torch.tensor([[3.0, 5.0]], requires_grad=True))

    assert (total.tolist(), rest.tolist()) == ([[4.0, 7.0]], [[-2.0, -3.0]])
    with pytest.raises(TypeError, match=r"takes 2 inputs \(x, y\), got 1"):
        network(torch.zeros(1, 2))


def test_sessions_use_the_workers_cores(model: Path) -> None:
    """As many threads as torch has, not all of the machine's."""
    session = setup_ort_session(str(model / "relu.onnx"), "cpu")

    assert session.get_session_options().intra_op_num_threads == torch.get_num_threads()


def test_files_that_are_no_model(model: Path) -> None:
    """A missing and a broken file are named."""
    (model / "broken.onnx").write_bytes(b"nothing")

    with pytest.raises(ModelLoadError, match=r"Missing the none\.onnx file"):
        setup_ort_session(str(model / "none.onnx"), None)
    with pytest.raises(ModelLoadError, match=r"broken\.onnx is not an ONNX model"):
        setup_ort_session(str(model / "broken.onnx"), None)


def test_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    (tmp_path / "m.onnx").write_bytes(b"")
    monkeypatch.setattr(onnx_session, "ONNX_AVAILABLE", False)

    with pytest.raises(ModelLoadError, match=r"m\.onnx needs onnxruntime.*pip install onnxruntime"):
        setup_ort_session(str(tmp_path / "m.onnx"), None)
