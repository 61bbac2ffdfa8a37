"""How many processors this process may really use: affinity and cgroup quota counted in."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from modelserver.cgroups import OWN, ROOT, groups, read

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.cgroups import Group


def usable_cpus(cgroup_root: Path = ROOT, own_cgroups: Path = OWN) -> int:
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
    quotas = (_quota(group) for group in groups("cpu", cgroup_root, own_cgroups))
    return min((quota for quota in quotas if quota is not None), default=None)


def parse_cpu_max(text: str) -> float | None:
    """Processors of a version 2 ``cpu.max``, ``<quota or max> <period>`` in microseconds."""
    parts = text.split()
    return _ratio(parts[0], parts[1]) if len(parts) == 2 else None


def parse_cfs(quota: str, period: str) -> float | None:
    """Processors of version 1's ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``; a quota of -1 is none."""
    return _ratio(quota.strip(), period.strip())


def _quota(group: Group) -> float | None:
    if group.unified:
        return parse_cpu_max(read(group.folder / "cpu.max"))
    return parse_cfs(read(group.folder / "cpu.cfs_quota_us"), read(group.folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    if not (quota.isdigit() and period.isdigit()) or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)
