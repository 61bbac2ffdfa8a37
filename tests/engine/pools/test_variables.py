"""The variables of workers."""

from __future__ import annotations

import re

import pytest

from modelserver.engine.pools.variables import ALLOCATOR, worker_variables

OURS = {ALLOCATOR: "expandable_segments:True"}


def allocators(machine: dict[str, str], own: dict[str, str], hidden: str = "") -> dict[str, str]:
    """Those about memory of GPUs."""
    found = worker_variables(machine, re.compile(hidden), own, 1)
    return {name: value for name, value in found.items() if "ALLOC_CONF" in name}


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_memory_of_gpus_is_in_expandable_segments(name: str) -> None:
    """Unless the machine's variables, or the model's, say anything by any name; hidden ones do not count."""
    said = {name: "max_split_size_mb:64"}

    assert allocators({}, {}) == OURS
    assert allocators(said, {}) == said
    assert allocators({}, said) == said
    assert allocators(said, {}, hidden="PYTORCH_.*") == OURS
