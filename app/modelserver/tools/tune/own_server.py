"""The tuner's own server: on free loopback ports, in a separate folder, stopped after tuning."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import psutil

from modelserver.models.settings.settings import Settings
from modelserver.tools.commands import message_of
from modelserver.tools.tune.client import HOST
from modelserver.tools.tune.errors import SettingRefused, TuningError
from modelserver.tools.tune.goal import ModelSetting

NAME = "tuned"
QUEUE = 100_000  # requests: more than any load of the tuner
_START_TIMEOUT = 60.0
_STOPPING, _ENDING = 20.0, 5.0
_REGISTER_TIMEOUT = 900.0
_LAST_OUTPUT = 2000
# Ports outside of the ephemeral range, which a connection could take before the server starts.
_PORTS = range(20_000, 30_000)


class OwnServer:
    """A running server with at most one model, named ``tuned``.

    Args:
        folder: its own, for configuration, logs and temporary files.
        store: the model store.
        base: a configuration file whose settings also apply, apart from addresses and models to load.
        largest_body: bytes of the largest request.
    """

    def __init__(self, folder: Path, store: Path, *, base: Path | None = None, largest_body: int = 0) -> None:
        self.inference, self._management, metrics = free_ports(3)
        self._folder = folder
        temp = folder / "tmp"
        temp.mkdir(parents=True, exist_ok=True)
        config = folder / "config.properties"
        settings = {
            "inference_address": f"http://{HOST}:{self.inference}",
            "management_address": f"http://{HOST}:{self._management}",
            "metrics_address": f"http://{HOST}:{metrics}",
            "enable_grpc_api": "false",
            "model_store": store,
            "load_models": "",
            "model_snapshot": "",
            "enable_envvars_config": "false",
            "enable_model_api": "true",
            "disable_token_authorization": "true",
            "disable_system_metrics": "true",
            "job_queue_size": QUEUE,
        }
        own = "".join(f"{key}={value}\n" for key, value in settings.items() if value != "" or base)
        if largest_body > Settings().max_request_size:
            own += f"max_request_size={largest_body}\n"
        config.write_bytes((base.read_bytes() + b"\n" if base else b"") + own.encode())
        environment = own_environment(os.environ) | {"TMPDIR": str(temp)}
        self._process = start_process(server_command(config), folder, environment, folder / "output")
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if self._call(self.inference, "GET", "/ping", timeout=5)[0] < 500:
                    return
            time.sleep(0.02)
        raise TuningError(f"The server to measure does not start:\n{last_output(self._folder / 'output')}")

    def register(self, url: str, setting: ModelSetting) -> dict[str, Any]:
        """Serve the model with this setting, in place of one from before; returns its description.

        Raises Refused with the server's answer if that fails.
        """
        self._call(self._management, "DELETE", f"/models/{NAME}", timeout=_REGISTER_TIMEOUT)
        query = urlencode({"url": url, "model_name": NAME, "synchronous": "true", **setting.parameters()})
        status, body = self._call(self._management, "POST", f"/models?{query}", timeout=_REGISTER_TIMEOUT)
        if status != 200:
            raise SettingRefused(message_of(body) or f"registration failed with {status}")
        _, body = self._call(self._management, "GET", f"/models/{NAME}")
        return dict(json.loads(body)[0])

    def ask(self, body: bytes, content_type: str) -> tuple[int, bytes]:
        """One prediction: status and body."""
        headers, path = {"Content-Type": content_type}, f"/predictions/{NAME}"
        return self._call(self.inference, "POST", path, _REGISTER_TIMEOUT, content=body, headers=headers)

    def stop(self) -> None:
        """Stops the server, then kills what is left of its processes."""
        stop_process(self._process)

    def _call(
        self, port: int, method: str, target: str, timeout: float = 60, **content: Any
    ) -> tuple[int, bytes]:
        """One HTTP exchange on its own connection. Raises OSError, also if the server has ended."""
        try:
            url = f"http://{HOST}:{port}{target}"
            answer = httpx.request(method, url, timeout=timeout, trust_env=False, **content)
        except httpx.HTTPError as error:
            raise ConnectionError(repr(error)) from error
        return answer.status_code, answer.content


def server_command(config: Path) -> list[str]:
    """Starts modelserver in the foreground with a configuration."""
    command = [sys.executable, "-m", "modelserver", "--start", "--foreground", "--ncs"]
    return [*command, "--ts-config", str(config)]


def start_process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """A server, in a session of its own: Ctrl-C is for who started it, and stops it. Raises OSError."""
    with output.open("wb") as file:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and file, or the user's command
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop_process(process: subprocess.Popen[bytes], *, whole: bool = False) -> None:
    """Stops a server, then kills what is left of its processes; ``whole``: its group is told to end."""
    relatives = list(family(process.pid))
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if whole else os.kill)(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOPPING)
    if whole:
        _wait_ended(relatives)
    for relative in relatives:
        with contextlib.suppress(psutil.Error):
            relative.kill()
    process.wait()
    _wait_ended(relatives)


def _wait_ended(processes: Sequence[psutil.Process]) -> None:
    deadline = time.monotonic() + _ENDING
    while any(map(_lives, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def last_output(path: Path) -> str:
    """The end of what a server printed."""
    return path.read_text("utf-8", "replace")[-_LAST_OUTPUT:]


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The server's environment, without variables that configure another server."""
    foreign = ("TS_", "MODELSERVER_")
    variables = {
        name: value
        for name, value in environment.items()
        if not name.startswith(foreign) and name not in {"LOG_LOCATION", "METRICS_LOCATION", "TEMP"}
    }
    if variables.get("PYTHONPATH"):
        parts = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(str(Path(part).resolve()) for part in parts if part)
    return variables


_chosen: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody uses. Raises TuningError if there are too few."""
    free: list[int] = []
    with contextlib.ExitStack() as stack:
        # Those of an earlier call come last: its server may not listen yet.
        for port in sorted(random.sample(_PORTS, len(_PORTS)), key=_chosen.__contains__):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind((HOST, port))
                free.append(port)
            if len(free) == count:
                _chosen.update(free)
                return free
    raise TuningError(f"{count} ports are needed, and {len(free)} of {_PORTS} are free.")


def family(pid: int) -> Iterable[psutil.Process]:
    """The process and its descendants; nothing if it has ended."""
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.Error:
        return []
