from __future__ import annotations

import os

from modelserver.engine.telemetry import system


def test_reading_of_this_host():
    """A reading has shares within 0..100 and sizes above 0."""
    reading = system.SystemMonitor(number_of_gpu=0).read()

    assert 0 <= reading.cpu_percent <= 100
    assert 0 < reading.memory_percent <= 100
    assert 0 <= reading.disk_percent <= 100
    assert reading.memory_used_mb > 0
    assert reading.memory_available_mb > 0
    assert reading.disk_used_gb > 0
    assert reading.gpus == ()


def test_cpu_use_is_measured_between_readings(monkeypatch):
    """CPU use is the busy share of the time since the reading before; no time passed is 0."""
    seconds = iter([(10.0, 100.0), (15.0, 110.0), (15.0, 110.0)])
    monkeypatch.setattr(system, "_cpu_seconds", lambda: next(seconds))
    monitor = system.SystemMonitor(number_of_gpu=0)

    assert monitor.read().cpu_percent == 50.0
    assert monitor.read().cpu_percent == 0.0


def test_worker_memory():
    """A living process has resident bytes, one that is gone has 0."""
    assert system.worker_memory(os.getpid()) > 1_000_000
    assert system.worker_memory(-1) == 0
    assert system.worker_memory(2**22 + 12345) == 0


def test_worker_memory_without_descriptors(monkeypatch):
    """Where nothing can be opened any more it is 0."""

    def process(pid):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(system.psutil, "Process", process)
    assert system.worker_memory(os.getpid()) == 0
