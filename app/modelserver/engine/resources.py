"""The CPU and memory available, within the limits of the machine and of control groups (versions 1 and 2).

``root`` is laid out like /sys/fs/cgroup, ``own`` like /proc/self/cgroup. In a container, its own group may be
shown as the root, so the root is always read. Missing and invalid values are no limit.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")

_OOM_KILL = re.compile(r"^oom_kill (\d{1,18})$", re.MULTILINE)
# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Group:
    """The folder of a group, and whether it is one of version 2."""

    folder: Path
    unified: bool


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A group's memory in bytes; file pages that can be reclaimed do not count as used."""

    limit: float
    used: float

    @property
    def available(self) -> float:
        return max(0.0, self.limit - self.used)


def groups(controller: str, root: Path = ROOT, own: Path = OWN) -> list[Group]:
    """The groups of this process for a controller, and all above them."""
    by_folder: dict[Path, Group] = {}
    lines = parse_own_cgroups(read(own))
    if not any(controllers == "" for controllers, _ in lines):
        lines.append(("", "/"))
    for controllers, path in lines:
        if not controllers:
            folders = [Group(folder, unified=True) for folder in upwards(root, path)]
        elif controller in controllers.split(","):
            mounts = (root / controllers, root / controller)
            folders = [Group(folder, unified=False) for mount in mounts for folder in upwards(mount, path)]
        else:
            continue
        by_folder.update((group.folder, group) for group in folders)
    return list(by_folder.values())


def parse_own_cgroups(text: str) -> list[tuple[str, str]]:
    """(controllers, path) of every line ``id:controllers:path``; version 2 has no controllers."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [(parts[1], parts[2]) for parts in lines if len(parts) == 3]


def upwards(root: Path, path: str) -> list[Path]:
    """The folder of a cgroup and those above it; in a container, the root may be the group itself."""
    relative = PurePosixPath(path.lstrip("/"))
    if ".." in relative.parts:
        return [root]
    return [root / relative, *(root / parent for parent in relative.parents)]


def memory_group(root: Path = ROOT, own: Path = OWN) -> MemoryGroup | None:
    """The group with the least memory left, of this process's and all above; None without limits."""
    limited = [memory for group in groups("memory", root, own) for memory in _memory_of(group)]
    return min(limited, key=lambda memory: memory.available, default=None)


def available_memory(meminfo: Path = MEMINFO, root: Path = ROOT, own: Path = OWN) -> float:
    """Available bytes of the machine, or of the container if that is less."""
    machine = _field(meminfo, "MemAvailable:") * 1024 or float("inf")
    group = memory_group(root, own)
    return machine if group is None else min(machine, group.available)


def cpu_seconds(root: Path = ROOT, own: Path = OWN) -> float | None:
    """CPU seconds used by this process's group so far; None if they are not counted."""
    for group in groups("cpuacct", root, own):
        if group.unified:
            used = _field(group.folder / "cpu.stat", "usage_usec") / 1e6
        else:
            used = (number(group.folder / "cpuacct.usage") or 0.0) / 1e9
        if used > 0:
            return used
    return None


def memory_kills(root: Path = ROOT, own: Path = OWN) -> int | None:
    """How many processes of this process's group the kernel has killed for lack of memory so far.

    None if that is not counted, as for a whole machine, where other processes would be included.
    """
    for unified, file in ((True, "memory.events"), (False, "memory.oom_control")):
        folders = (group.folder for group in groups("memory", root, own) if group.unified is unified)
        # Groups above it include other processes.
        nearest = next((folder for folder in folders if folder.is_dir()), None)
        counted = None if nearest is None else _OOM_KILL.search(read(nearest / file))
        if counted is not None:
            return int(counted[1])
    return None


def read(path: Path) -> str:
    """The text of a file, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def number(path: Path) -> float | None:
    """The number in a file; None for anything else, such as ``max``."""
    with contextlib.suppress(ValueError):
        return float(read(path))
    return None


def _memory_of(group: Group) -> Iterator[MemoryGroup]:
    limit_file, used_file, cached = (
        ("memory.max", "memory.current", "inactive_file")
        if group.unified
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    limit, used = number(group.folder / limit_file), number(group.folder / used_file)
    if limit is None or used is None or limit >= _NO_LIMIT:
        return
    yield MemoryGroup(limit, max(0.0, used - _field(group.folder / "memory.stat", cached)))


def _field(path: Path, name: str) -> float:
    for line in read(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            with contextlib.suppress(ValueError):
                return float(words[1])
    return 0.0


def usable_cpus(cgroup_root: Path = ROOT, own_cgroups: Path = OWN) -> int:
    """CPUs that this process may use, at least 1; a quota of 1.5 counts as 2."""
    quota = cgroup_quota(cgroup_root, own_cgroups)
    allowed = allowed_cpus()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def allowed_cpus() -> int:
    """CPUs that the scheduler may run this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(cgroup_root: Path, own_cgroups: Path) -> float | None:
    """The smallest quota, in CPUs, of this process's cgroups and all above them; None without one."""
    quotas = (_quota(group) for group in groups("cpu", cgroup_root, own_cgroups))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(group: Group) -> float | None:
    """The CPUs of ``<quota or max> <period>`` in microseconds; version 1 has two files, -1 for ``max``."""
    files = ("cpu.max",) if group.unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    numbers = " ".join(read(group.folder / file) for file in files).split()
    if len(numbers) != 2 or not all(each.isdigit() and int(each) for each in numbers):
        return None
    return int(numbers[0]) / int(numbers[1])
