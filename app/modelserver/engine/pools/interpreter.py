"""The Python that runs workers: the server's, or another one without modelserver installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import modelserver
from modelserver.errors import ConfigError

WORKER = "modelserver.engine.worker"
_ELSEWHERE = str(Path(modelserver.__file__).parent / "engine" / "worker" / "elsewhere.py")
_PATIENCE = 60.0


def worker_command(python: str, module: str = WORKER) -> list[str]:
    """The command that starts a worker by its entry ``module``, without its arguments."""
    return [python, "-m", module] if python == sys.executable else [python, _ELSEWHERE, module, _handlers()]


def check_interpreter(python: str) -> None:
    """Raises ConfigError if ``python`` cannot run workers: not a Python, too old, or packages are missing."""
    if python == sys.executable:
        return
    try:
        run = subprocess.run(  # noqa: S603 - the operator's own
            [python, _ELSEWHERE, "check", _handlers()],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"python={python} cannot be run: {error}") from error
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"it exits with status {run.returncode}"]
        raise ConfigError(f"python={python}: {lines[-1]}")


def _handlers() -> str:
    """The folder of the handlers' package, which the server does not import."""
    spec = importlib.util.find_spec("modelserver_handlers")
    assert spec is not None  # noqa: S101 - installed with the server
    assert spec.submodule_search_locations is not None  # noqa: S101 - a package
    return spec.submodule_search_locations[0]
