"""What the Open Inference Protocol says of models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.models.options.signature import Signature
from modelserver.surface.api.metadata import describe_tensors, extensions


def test_tensors_of_a_signature_are_described() -> None:
    """Of an output that is not declared nothing is known, unless the handler is a built-in one."""
    signature = Signature((TensorSpec("x", "FP32", (-1, 2)),))
    pool = SimpleNamespace(splits=False)
    model: Any = SimpleNamespace(signature=signature, pool=pool, envelope="")
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]

    assert describe_tensors(model) == {"inputs": inputs, "outputs": []}
    pool.splits = True
    assert describe_tensors(model)["outputs"] == [{"name": "output_0", "datatype": "BYTES", "shape": [-1]}]


def test_shared_memory_is_an_extension_where_it_is_allowed() -> None:
    """Others are always there."""
    without, with_it = (extensions(SimpleNamespace(shared_memory_prefix=each)) for each in (None, "/"))

    assert [*without, "system_shared_memory"] == with_it
