"""Started as SageMaker starts TorchServe: by its toolkit's command, and by the toolkit itself."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.serving import Home, free_port, run_to_end, wait_until
from tests.waiting import is_alive

from modelserver.run.start_stop import JAVA_CLASS
from modelserver.tools.aliases import install

HANDLER = """
from answers import ANSWER

class HandlerService:
    def initialize(self, context):
        self.model_dir = context.system_properties.get("model_dir")

    def handle(self, data, context):
        name = context.request_processor[0].get_request_property("Content-Type")
        return [f"{ANSWER} {self.model_dir} {name} {bytes(row['body']).decode()}" for row in data]
"""
INFERENCE = """
import json, os, torch

def model_fn(model_dir):
    return torch.load(os.path.join(model_dir, "model.pt"), weights_only=True)

def predict_fn(data, model):
    return data * model["factor"]
"""
# The toolkit has two places of its own: the configuration, which only root may write, is moved.
TOOLKIT = """
import sys
from sagemaker_pytorch_serving_container import serving, torchserve

torchserve.TS_CONFIG_FILE = sys.argv[1]
serving.main()
"""


@pytest.fixture
def started(tmp_path):
    """The pids of what a test started; they are gone after it."""
    pids = []
    yield pids
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGTERM)
    for pid in pids:
        wait_until(lambda pid=pid: not is_alive(pid), f"{pid} ends")


def invoke(port, body, content_type):
    url = f"http://127.0.0.1:{port}/invocations"
    return httpx.post(url, content=body, headers={"content-type": content_type}, timeout=30, trust_env=False)


def is_healthy(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ping", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_command_of_the_toolkit_starts_a_server(tmp_path, started):
    """`torchserve` starts with a model folder and a handler outside of an empty store, one port for all, and
    log4j. The server's process has TorchServe's class name; it serves `/invocations`, and unpacks nothing.
    """
    model, code, store = (tmp_path / name for name in ("model", "toolkit", "store"))
    for folder in (model, code, store):
        folder.mkdir()
    (model / "model.pt").write_bytes(b"weights")
    (code / "handler_service.py").write_text(HANDLER)
    (code / "answers.py").write_text("ANSWER = 'from'\n")
    (tmp_path / "log4j2.xml").write_text("<Configuration/>")
    install(tmp_path / "bin")
    home, port = Home(tmp_path / "home"), free_port()
    address = f"http://127.0.0.1:{port}"
    config = home.write_config(
        {
            "vmargs": "-XX:-UseContainerSupport",
            "enable_envvars_config": "true",
            "decode_input_request": "false",
            "load_models": "ALL",
            "disable_token_authorization": "true",
            "enable_model_api": "true",
            "default_response_timeout": "60",
            "default_workers_per_model": "1",
            "inference_address": address,
            "management_address": address,
            "default_service_handler": f"{code}/handler_service.py:handle",
        }
    )
    flags = ["--start", "--model-store", store, "--ts-config", config]
    flags += ["--log-config", tmp_path / "log4j2.xml", "--models", f"model={model}"]
    variables = {"TS_ENABLE_GRPC_API": "false", "TS_METRICS_ADDRESS": "http://127.0.0.1:0"}
    command = [tmp_path / "bin" / "torchserve", *flags]
    done = run_to_end(command, home.path, {**home.environment, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    pid = home.pid()
    started.append(pid)

    marked = [p.pid for p in psutil.process_iter() if JAVA_CLASS in command_of(p) and p.ppid() != os.getpid()]
    assert pid in marked
    wait_until(lambda: is_healthy(port), "the model is loaded")
    assert invoke(port, b"x", "text/csv").text == f"from {model} text/csv x"
    assert sorted(path.name for path in model.iterdir()) == ["model.pt"]


def command_of(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def toolkit_packages():
    """The toolkit's packages, fetched from the package index and kept for the next run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    packages = cache / "modelserver-tests" / "sagemaker-pytorch-inference-2.0.25"
    if not packages.is_dir():
        packages.parent.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.mkdtemp(dir=packages.parent)
        # boto3 is imported for private package indexes only, torch is here: neither is fetched for this.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", fresh]
        names = ["sagemaker-pytorch-inference==2.0.25", "retrying", "six", "setuptools<81"]
        fetched = subprocess.run([*pip, *names], capture_output=True, text=True, check=False, timeout=300)
        if fetched.returncode:
            shutil.rmtree(fresh)
            pytest.skip(f"the toolkit cannot be installed: {fetched.stderr[-300:]}")
        Path(fresh, "boto3.py").write_text("")
        with contextlib.suppress(OSError):  # another run was quicker
            Path(fresh).rename(packages)
    return packages


@pytest.mark.slow  # fetches the toolkit, and imports it
@pytest.mark.timeout(400)
def test_toolkit_starts_the_server(tmp_path, started):
    """PyPI's sagemaker-pytorch-inference, unmodified, starts the server and finds its process, and its
    handler service serves a model with the user's own functions.
    """
    packages = toolkit_packages()
    opt = tmp_path / "opt"
    (opt / "model" / "code").mkdir(parents=True)
    (opt / "model" / "code" / "inference.py").write_text(INFERENCE)
    torch = pytest.importorskip("torch")
    torch.save({"factor": torch.tensor(3.0)}, opt / "model" / "model.pt")
    (tmp_path / "start.py").write_text(TOOLKIT)
    install(tmp_path / "bin")
    home, port = Home(tmp_path / "home"), free_port()
    variables = {
        "PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{home.environment['PYTHONPATH']}{os.pathsep}{packages}",
        "SAGEMAKER_BASE_DIR": str(opt),
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        "TS_ENABLE_GRPC_API": "false",
        "TS_METRICS_ADDRESS": "http://127.0.0.1:0",
    }
    command = [sys.executable, tmp_path / "start.py", tmp_path / "sagemaker-ts.properties"]
    toolkit = home.start(command, **variables)
    try:
        wait_until(lambda: is_healthy(port) or toolkit.poll() is not None, "the model is loaded", 90)
        assert toolkit.poll() is None, home.output()
        started.append(home.pid())
        answer = invoke(port, b"[[1.0, 2.0]]", "application/json")
        assert (answer.status_code, answer.json()) == (200, [[3.0, 6.0]]), home.output()
    finally:
        toolkit.send_signal(signal.SIGTERM)
        # It sends the signal on to the server, and ends after it.
        toolkit.wait(60)
    assert not is_alive(started[0])
