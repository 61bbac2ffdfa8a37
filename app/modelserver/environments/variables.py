"""The environment variables that workers start with, on the server's machine and on others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def worker_variables(
    machine: Mapping[str, str], hidden: re.Pattern[str] | None, own: Mapping[str, str], threads: int
) -> dict[str, str]:
    """Those of the machine without hidden ones, with thread counts, and with the worker's ``own``.

    Numeric libraries read their thread counts only when they load: ``threads`` if neither says anything.
    """
    variables = {k: v for k, v in machine.items() if hidden is None or not hidden.fullmatch(k)}
    for name in THREAD_VARIABLES:
        variables[name] = variables.get(name) or str(threads)
    return {**variables, "PYTHONUNBUFFERED": "1", **own}
