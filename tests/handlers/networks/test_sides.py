"""What model files declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.networks.onnx_session import OnnxNetwork
from modelserver_handlers.networks.weights import load_exported

if TYPE_CHECKING:
    from pathlib import Path


class Both(torch.nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, ids + 1


class Session:
    """A session of onnxruntime, as far as it declares something."""

    class _Entry:
        def __init__(self, name: str, kind: str, shape: list[Any]) -> None:
            self.name, self.type, self.shape = name, kind, shape

    def get_inputs(self) -> list[Any]:
        return [self._Entry("picture", "tensor(float)", ["n", 3, None, 8])]

    def get_outputs(self) -> list[Any]:
        return [self._Entry("label", "tensor(int64)", ["n"])]


class Own(BaseHandler):
    def preprocess(self, data: Any) -> Any:
        return data


class Counting(BaseHandler):
    def postprocess(self, data: Any) -> Any:
        return [len(data)]


@pytest.fixture
def exported(tmp_path: Path) -> Any:
    """A program with two inputs and outputs, saved and loaded; the rows are of any number."""
    rows = torch.export.Dim("rows")
    example = torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    program = torch.export.export(Both(), example, dynamic_shapes=({0: rows}, {0: rows}))
    torch.export.save(program, tmp_path / "both.pt2")
    return load_exported(tmp_path / "both.pt2", torch.device("cpu"))


def signature(kind: type[BaseHandler], network: Any) -> Any:
    handler = kind()
    handler.model = network
    return handler._ms_signature()


def test_a_program_declares_its_tensors(exported: Any) -> None:
    """By the names of ``forward``'s arguments; outputs are named as in answers."""
    result = signature(BaseHandler, exported)

    assert result.inputs.tensors == (("x", "FP32", (-1, 3)), ("ids", "INT64", (-1,)))
    assert result.outputs.tensors == (("output_0", "FP32", (-1, 3)), ("output_1", "INT64", (-1,)))


def test_a_graph_declares_its_tensors() -> None:
    """Sizes without a number are any."""
    result = signature(BaseHandler, OnnxNetwork(Session()))

    assert result.inputs.tensors == (("picture", "FP32", (-1, 3, -1, 8)),)
    assert result.outputs.tensors == (("output_0", "INT64", (-1,)),)


def test_a_handler_of_ones_own_declares_nothing_of_it(exported: Any) -> None:
    """A class that changes inputs or outputs has others than the file; other networks declare none."""
    assert signature(Own, exported) is None
    assert signature(Counting, exported).outputs.tensors == ()
    assert signature(BaseHandler, torch.nn.Linear(1, 1)) is None
