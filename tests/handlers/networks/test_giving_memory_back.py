"""How the C library deals with memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from modelserver_handlers.networks.device import give_back_memory

FAULTS = """
import resource
from modelserver_handlers.networks.device import keep_memory
import torch
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(6 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
keep_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's behaviour")
@pytest.mark.parametrize(("setting", "kept"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "65536"}, False)])
def test_memory_is_reused(setting: dict[str, str], kept: bool) -> None:
    """Tensors of 24 MB are put where the last one was, unless the user has decided otherwise."""
    environment = {"PYTHONPATH": ":".join(sys.path), "THP_MEM_ALLOC_ENABLE": "0", **setting}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) < 6000) is kept


def test_giving_back_can_be_repeated() -> None:
    """It has no state and needs none."""
    give_back_memory()
    give_back_memory()
