import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from modelserver.engine import resources as cgroups
from modelserver.engine.resources import MemoryGroup
from modelserver.engine.telemetry import system


def test_this_host_is_read():
    reading = system.SystemMonitor(number_of_gpu=0).read()

    assert 0 <= reading.cpu_percent <= 100
    assert 0 < reading.memory_percent <= 100
    assert 0 <= reading.disk_percent <= 100
    assert reading.memory_used_mb > 0
    assert reading.memory_available_mb > 0
    assert reading.disk_used_gb > 0
    assert reading.gpus == ()


def test_cpu_use_is_measured_between_readings(monkeypatch):
    seconds = iter([(10.0, 100.0), (15.0, 110.0), (15.0, 110.0)])
    monkeypatch.setattr(system, "_cpu_seconds", lambda: next(seconds))
    monitor = system.SystemMonitor(number_of_gpu=0)

    assert monitor.read().cpu_percent == 50.0
    assert monitor.read().cpu_percent == 0.0


def test_worker_memory_is_read(monkeypatch):
    assert 1_000_000 < system.worker_memory(os.getpid(), alone=True) < system.worker_memory(os.getpid())
    assert system.worker_memory(-1) == 0
    assert system.worker_memory(2**22 + 12345) == 0
    assert system.family_of([2**22 + 12345]) == [2**22 + 12345]

    monkeypatch.setattr(system.psutil, "Process", Mock(side_effect=OSError(24, "Too many open files")))
    assert system.worker_memory(os.getpid()) == 0


# Readings of the host where a container limits it, by fake control groups


MEGABYTE = 1 << 20


@pytest.fixture
def machine(monkeypatch):
    """Lets the machine have 1000 MB, of which 600 can be had; the container has what is given."""
    memory = SimpleNamespace(
        total=1000 * MEGABYTE, used=350 * MEGABYTE, available=600 * MEGABYTE, percent=40.0
    )
    monkeypatch.setattr(system.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(system, "cgroup_quota", lambda *_: None)

    def container(limit, used=0):
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
def test_memory_follows_the_container(machine, limit, used, of_container, expected):
    machine(limit, used)
    reading = system.SystemMonitor(number_of_gpu=0, of_container=of_container).read()

    assert (reading.memory_used_mb, reading.memory_available_mb, reading.memory_percent) == expected


@pytest.mark.parametrize(("processors", "expected"), [(8, 75.0), (1, 100.0)])
def test_cpu_use_follows_the_container(machine, monkeypatch, processors, expected):
    """The share is of the quota, or of the processors where these are fewer."""
    machine(None)
    used = iter([10.0, 13.0])
    now = iter([100.0, 102.0])
    monkeypatch.setattr(system, "cgroup_quota", lambda *_: 2.0)
    monkeypatch.setattr(system, "allowed_cpus", lambda: processors)
    monkeypatch.setattr(cgroups, "cpu_seconds", lambda: next(used))
    monkeypatch.setattr(system, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monitor = system.SystemMonitor(number_of_gpu=0, of_container=True)

    assert monitor.read().cpu_percent == expected


def test_a_group_that_counts_nothing(machine, monkeypatch):
    """With a quota and no count of its use, the machine's processors are read."""
    machine(None)
    seconds = iter([(10.0, 100.0), (15.0, 110.0)])
    monkeypatch.setattr(system, "cgroup_quota", lambda *_: 2.0)
    monkeypatch.setattr(system, "_cpu_seconds", lambda: next(seconds))
    monkeypatch.setattr(cgroups, "cpu_seconds", lambda: None)

    assert system.SystemMonitor(number_of_gpu=0, of_container=True).read().cpu_percent == 50.0
