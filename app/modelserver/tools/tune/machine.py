"""The machine and versions, on which the figures depend."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from modelserver import __version__
from modelserver.engine.pools.variables import THREAD_VARIABLES
from modelserver.engine.resources import usable_cpus

USED_BY_OTHERS = "used by other programs before the start"
BUSY = 15.0  # percent of all CPUs; from here on, others affect figures


def others_percent() -> float:
    """The current usage of the machine's processors, in percent; takes half a second."""
    return float(psutil.cpu_percent(interval=0.5))


def machine_facts(description: Mapping[str, Any], others: float) -> dict[str, str]:
    """By name. ``description`` is the model's, whose workers report whether they use a GPU.

    ``others`` is what other programs used before the start, in percent.
    """
    workers = description.get("workers") or [{}]
    threads = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if os.environ.get(name)]
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": cpu_model(),
        "cores": str(usable_cpus()),
        "device": "GPU" if workers[0].get("gpu") else "CPU",
        "environment": " ".join(threads),
        USED_BY_OTHERS: f"{others:.0f} %" if others >= BUSY else "",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "modelserver": __version__,
        **{package: _version(package) for package in ("torch", "torchvision")},
    }
    return {name: fact for name, fact in facts.items() if fact}


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name."""
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
