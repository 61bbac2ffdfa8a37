"""The environment variables that workers start with, on the server's machine and on others."""

from __future__ import annotations

import re
from collections.abc import Mapping

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# The name that all versions of torch read; newer ones read others as well.
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_ALLOCATOR_VARIABLES = frozenset({ALLOCATOR, "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"})


def worker_variables(
    machine: Mapping[str, str], hidden: re.Pattern[str] | None, own: Mapping[str, str], threads: int
) -> dict[str, str]:
    """Returns the machine's variables without hidden ones, with thread counts and the worker's ``own``.

    Numeric libraries read their thread counts only when they load: ``threads`` if neither says anything.
    """
    variables = {k: v for k, v in machine.items() if hidden is None or not hidden.fullmatch(k)}
    for name in THREAD_VARIABLES:
        variables[name] = variables.get(name) or str(threads)
    # GPUs are numbered as NVML does; CUDA's own order is by speed.
    variables.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return with_allocator({**variables, "PYTHONUNBUFFERED": "1", **own})


def with_allocator(variables: Mapping[str, str]) -> dict[str, str]:
    """``variables``, plus a setting of torch's GPU allocator unless set; torch may read it on import.

    The memory of a freed batch can then be used for one of any other size.
    """
    default = {} if variables.keys() & _ALLOCATOR_VARIABLES else {ALLOCATOR: "expandable_segments:True"}
    return {**variables, **default}
