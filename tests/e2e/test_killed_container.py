"""A container that was killed and is started again, as a kubelet does for want of memory: its processes are
numbered from 1 again, and its temporary directory is as it was.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys

import httpx
import psutil
import pytest
from tests.e2e.serving import MODEL_CODE, PATIENCE, STARTED, Home, addresses, archived, wait_until

_ALONE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def can_be_alone():
    """Whether process numbers of one's own are allowed here."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_ALONE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,  # starts from nothing, twice
    pytest.mark.skipif(not can_be_alone(), reason="needs the right to make process namespaces"),
]


@contextlib.contextmanager
def container(home, url):
    """The entry point as process 1, once its model is ready; killed at the end if it is still there."""
    program = [sys.executable, "-m", "modelserver.tools.container", "--model-store", home.path]
    outside = home.start([*_ALONE, *program])
    try:
        wait_until(lambda: STARTED in home.output() or outside.poll() is not None, "it starts")
        assert STARTED in home.output(), home.output()
        wait_until(lambda: httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code == 200, "ready")
        (first,) = psutil.Process(outside.pid).children()
        yield first
    finally:
        with contextlib.suppress(psutil.Error, UnboundLocalError):
            first.kill()
        outside.wait(PATIENCE)


def test_killed_container_starts_again(tmp_path):
    """Process 1 is another than the killed one: its PID file and directory do not count as in use."""
    settings = {**addresses(), "load_models": "echo.mar", "enable_grpc_api": "false"}
    settings["default_workers_per_model"] = "1"
    home = Home(tmp_path, {f"TS_{name.upper()}": value for name, value in settings.items()})
    url = settings["inference_address"]
    archived(tmp_path, "echo", MODEL_CODE / "echo.py")
    (tmp_path / "config.properties").write_text("enable_envvars_config=true\n")
    with container(home, url) as first:
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE)
    assert (home.pid(), len(home.workdirs())) == (1, 1)
    (left,) = home.workdirs()

    with container(home, url) as second:
        assert (home.pid(), len(home.workdirs())) == (1, 1)
        assert not left.exists()
        os.kill(second.pid, signal.SIGTERM)
        second.wait(PATIENCE)
    assert home.pid() is None
    assert home.workdirs() == []
