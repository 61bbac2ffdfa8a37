"""How many processors this process may really use: affinity and cgroup quota counted in."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cpus(cgroup_root: Path = _CGROUP_ROOT, own_cgroups: Path = _OWN_CGROUPS) -> int:
    """Processors this process may use, at least 1; a quota of 1.5 counts as 2."""
    quota = cgroup_quota(cgroup_root, own_cgroups)
    allowed = allowed_cpus()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def allowed_cpus() -> int:
    """Processors that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(cgroup_root: Path, own_cgroups: Path) -> float | None:
    """The tightest quota in processors of this process's cgroups and all above them; None without one.

    ``cgroup_root`` is laid out like /sys/fs/cgroup, ``own_cgroups`` like /proc/self/cgroup.
    """
    quotas = [
        quota
        for controllers, path in parse_own_cgroups(_read(own_cgroups))
        for quota in _quotas(cgroup_root, controllers, path)
    ]
    return min(quotas, default=None)


def parse_own_cgroups(text: str) -> list[tuple[str, str]]:
    """(controllers, path) of every line ``id:controllers:path``; version 2 has no controllers."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [(parts[1], parts[2]) for parts in lines if len(parts) == 3]


def parse_cpu_max(text: str) -> float | None:
    """Processors of a version 2 ``cpu.max``, ``<quota or max> <period>`` in microseconds."""
    parts = text.split()
    return _ratio(parts[0], parts[1]) if len(parts) == 2 else None


def parse_cfs(quota: str, period: str) -> float | None:
    """Processors of version 1's ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``; a quota of -1 is none."""
    return _ratio(quota.strip(), period.strip())


def _quotas(cgroup_root: Path, controllers: str, path: str) -> Iterator[float]:
    if not controllers:
        folders = _upwards(cgroup_root, path)
        found = (parse_cpu_max(_read(folder / "cpu.max")) for folder in folders)
    elif "cpu" in controllers.split(","):
        roots = (cgroup_root / controllers, cgroup_root / "cpu")
        folders = [folder for root in roots for folder in _upwards(root, path)]
        found = (
            parse_cfs(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
            for folder in folders
        )
    else:
        return
    yield from (quota for quota in found if quota is not None)


def _upwards(root: Path, path: str) -> list[Path]:
    """The folder of a cgroup and of those above it; the root's own stands for it inside a container."""
    relative = PurePosixPath(path.lstrip("/"))
    if ".." in relative.parts:
        return [root]
    return [root / relative, *(root / parent for parent in relative.parents)]


def _ratio(quota: str, period: str) -> float | None:
    if not (quota.isdigit() and period.isdigit()) or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
