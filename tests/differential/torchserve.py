"""The real TorchServe, where a virtual environment has it and there is a Java for it."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.differential.chapters import SETTINGS
from tests.e2e.serving import free_port

VARIABLE = "MODELSERVER_TEST_TORCHSERVE"
"""Names the virtual environment that TorchServe 0.12.0 is installed in."""

PATIENCE = 120.0


def missing(environment: str | None) -> str | None:
    """Why the real TorchServe cannot be used here, None if it can."""
    if not environment:
        return f"{VARIABLE} does not name a virtual environment with TorchServe 0.12.0"
    if not (Path(environment) / "bin" / "torchserve").exists():
        return f"there is no torchserve in {environment}"
    if shutil.which("java") is None:
        return "TorchServe needs java, which is not installed"
    return None


@contextlib.contextmanager
def torchserve(
    environment: Path, store: Path, folder: Path, settings: Mapping[str, str]
) -> Iterator[dict[str, tuple[str, int]]]:
    """A running TorchServe, ended afterwards; gives the addresses of its ports."""
    folder.mkdir(parents=True)
    temp = folder / "tmp"
    temp.mkdir()
    ports = {name: free_port() for name in ("inference", "management", "metrics")}
    lines = {f"{name}_address": f"http://127.0.0.1:{port}" for name, port in ports.items()}
    lines |= {"grpc_inference_port": str(free_port()), "grpc_management_port": str(free_port())}
    lines |= {**SETTINGS, **settings, "model_store": str(store)}
    config = folder / "config.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    program = environment.resolve() / "bin" / "torchserve"
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("TS_", "PYTHON"))}
    variables |= {"PATH": f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    variables |= {"TMPDIR": str(temp), "TEMP": str(temp), "LOG_LOCATION": str(folder / "logs")}
    variables |= {"METRICS_LOCATION": str(folder / "logs")}
    with (folder / "out.txt").open("wb") as out:
        process = subprocess.Popen(
            [str(program), "--start", "--foreground", "--ncs", "--ts-config", str(config)],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_started(process, folder / "out.txt")
        yield {name: ("127.0.0.1", port) for name, port in ports.items()}
    finally:
        pid = temp / ".model_server.pid"
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(pid.read_text()), 15)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_started(process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while "Model server started." not in output.read_text("utf-8", "replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"TorchServe did not start:\n{output.read_text('utf-8', 'replace')[-2000:]}")
        time.sleep(0.1)
