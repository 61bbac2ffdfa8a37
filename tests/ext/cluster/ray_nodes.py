"""Starts a Ray cluster for tests: its nodes are processes on loopback, and it demands a token."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.serving import free_port

# Longer paths of sockets than 107 bytes are refused; what Ray adds has 80.
_LONGEST_FOLDER = 24
_TOKEN = "a-token-of-a-cluster-for-tests-only-0123456789"


class RayCluster:
    """The cluster's process; nodes are added one by one. ``program`` runs first in each Python there."""

    def __init__(self, folder: Path, port: int, program: str = "", **variables: str) -> None:
        (folder / "ray").mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(program)
        self.address = f"127.0.0.1:{port}"
        self.folder = folder
        environment = {
            **os.environ,
            "TMPDIR": str(folder),
            "PYTHONPATH": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",
            # Workers are started on request.
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
            # Ray would end workers when other work takes the machine's memory.
            "RAY_memory_monitor_refresh_ms": "0",
            # A killed node is found dead after 2 s instead of 15.
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "4",
            # Clusters that keep their state in one Redis have different ones.
            "RAY_external_storage_namespace": uuid.uuid4().hex,
            **variables,
        }
        self._log = (folder / "cluster.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ray_cluster.py")), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
        )

    def add(self, **node) -> dict[str, int]:
        return self._order(node)

    def start_gcs_anew(self) -> None:
        """The GCS ends, if it has not ended, and another one starts at its address."""
        self._order(None)

    def _order(self, order: dict[str, Any] | None) -> dict[str, int]:
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, (self.folder / "cluster.log").read_text()[-3000:]
        return dict(json.loads(line))

    def close(self) -> None:
        if self.process.returncode is not None:
            return
        ours = psutil.Process(self.process.pid).children(recursive=True)
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in ours:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[dict[str, str]]:
    """Variables of a cluster whose GCS keeps its state in a Redis; none if that is not installed."""
    if shutil.which("redis-server") is None:
        yield {}
        return
    port = free_port()
    options = {"port": port, "bind": "127.0.0.1", "save": "", "dir": folder}
    command = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    server = subprocess.Popen(["redis-server", *command], stdout=subprocess.DEVNULL)
    try:
        yield {"RAY_REDIS_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    usual = tempfile.gettempdir()
    path = Path(tempfile.mkdtemp(prefix="r", dir=usual if len(usual) < _LONGEST_FOLDER else "/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """What is started meanwhile knows the cluster's token, and finds no other one in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", _TOKEN)
        patch.setenv("HOME", str(folder))
        yield
