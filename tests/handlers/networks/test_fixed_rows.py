"""Programs that were exported without a dynamic number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.networks.fixed_rows import fixed_rows, fixed_rows_of, in_parts
from modelserver_handlers.networks.onnx_session import OnnxNetwork
from modelserver_handlers.networks.weights import load_exported

if TYPE_CHECKING:
    from pathlib import Path


class Both(torch.nn.Module):
    """Two outputs with a row for each row of the two inputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows x 2 and rows to rows x 2 and rows."""
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
def test_shapes_fix_the_rows(shapes: list[tuple[Any, ...]], rows: int | None) -> None:
    """All inputs have the same first size, which is a number."""
    assert fixed_rows(shapes) == rows


@pytest.mark.parametrize("rows", [1, 3])
def test_a_program_computes_any_number_of_rows(tmp_path: Path, rows: int) -> None:
    """It does so in parts; what fills up the last part is in no output."""
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
def test_the_description_warns(
    tmp_path: Path, make_context: Any, begin: Any, rows: int | None, warns: bool
) -> None:
    """A program for a fixed number of rows serves batches of another size, and says that it splits them."""
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


def test_an_onnx_model_computes_any_number_of_rows() -> None:
    """The shapes of its inputs say for how many rows it was exported."""

    class Session:
        class _Entry:
            name, type, shape = "x", "tensor(float)", [2, 1]

        def get_inputs(self) -> list[Any]:
            return [self._Entry()]

        def run(self, _: None, feed: dict[str, Any]) -> list[Any]:
            assert feed["x"].shape == (2, 1)
            return [feed["x"] * 2]

    network = OnnxNetwork(Session())

    assert fixed_rows_of(network) == 2
    assert network(torch.tensor([[1.0], [2.0], [3.0]])).tolist() == [[2.0], [4.0], [6.0]]


def test_named_inputs_and_others_are_passed_on() -> None:
    """Only tensors are cut; numbers come to each part."""

    def run(x: torch.Tensor, *, y: torch.Tensor, factor: int) -> dict[str, torch.Tensor]:
        assert len(x) == len(y) == 2
        return {"sum": x + factor * y}

    outputs = in_parts(run, 2, (torch.arange(3),), {"y": torch.ones(3), "factor": 2})

    assert outputs["sum"].tolist() == [2, 3, 4]


def test_outputs_without_rows_are_an_error() -> None:
    """They cannot be joined; a batch of exactly the fixed number of rows is computed as it is."""
    assert in_parts(torch.sum, 2, (torch.ones(2, 2),), {}) == 4
    with pytest.raises(ValueError, match="no row for each of the 2 rows"):
        in_parts(torch.sum, 2, (torch.ones(3, 2),), {})
