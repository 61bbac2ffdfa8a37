"""Readings of the host where a container limits it, by fake control groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from modelserver.engine import resources as cgroups
from modelserver.engine.resources import MemoryGroup
from modelserver.engine.telemetry import system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEGABYTE = 1 << 20


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the machine have 1000 MB, of which 600 can be had; the container has what is given."""
    memory = SimpleNamespace(
        total=1000 * MEGABYTE, used=350 * MEGABYTE, available=600 * MEGABYTE, percent=40.0
    )
    monkeypatch.setattr(system.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(system, "cgroup_quota", lambda *_: None)

    def container(limit: float | None, used: float = 0) -> None:
        group = None if limit is None else MemoryGroup(limit * MEGABYTE, used * MEGABYTE)
        monkeypatch.setattr(cgroups, "memory_group", lambda: group)

    return container


@pytest.mark.parametrize(
    ("limit", "used", "of_container", "expected"),
    [
        (200, 50, True, (50, 150, 25.0)),
        (900, 100, True, (100, 600, 11.1)),
        (None, 0, True, (350, 600, 40.0)),
        (2000, 100, True, (350, 600, 40.0)),
        (200, 50, False, (350, 600, 40.0)),
    ],
    ids=["limited", "the machine has less left", "no limit", "a limit beyond the machine", "not asked for"],
)
def test_memory(
    machine: Callable[..., None],
    limit: float | None,
    used: float,
    of_container: bool,
    expected: tuple[float, float, float],
) -> None:
    """Used, available and share are of the limit that the kernel will act on."""
    machine(limit, used)
    reading = system.SystemMonitor(number_of_gpu=0, of_container=of_container).read()

    assert (reading.memory_used_mb, reading.memory_available_mb, reading.memory_percent) == expected


@pytest.mark.parametrize(("processors", "expected"), [(8, 75.0), (1, 100.0)])
def test_processors(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, processors: int, expected: float
) -> None:
    """The share is of the quota, or of the processors where these are fewer."""
    machine(None)
    used: Iterator[float] = iter([10.0, 13.0])
    now: Iterator[float] = iter([100.0, 102.0])
    monkeypatch.setattr(system, "cgroup_quota", lambda *_: 2.0)
    monkeypatch.setattr(system, "allowed_cpus", lambda: processors)
    monkeypatch.setattr(cgroups, "cpu_seconds", lambda: next(used))
    monkeypatch.setattr(system, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monitor = system.SystemMonitor(number_of_gpu=0, of_container=True)

    assert monitor.read().cpu_percent == expected


def test_a_group_that_counts_nothing(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a quota and no count of its use, the machine's processors are read."""
    machine(None)
    seconds = iter([(10.0, 100.0), (15.0, 110.0)])
    monkeypatch.setattr(system, "cgroup_quota", lambda *_: 2.0)
    monkeypatch.setattr(system, "_cpu_seconds", lambda: next(seconds))
    monkeypatch.setattr(cgroups, "cpu_seconds", lambda: None)

    assert system.SystemMonitor(number_of_gpu=0, of_container=True).read().cpu_percent == 50.0
