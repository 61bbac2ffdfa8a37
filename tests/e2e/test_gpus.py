"""Servers that believe that they have a GPU, by a driver of the tests, on machines without one."""

import os

import pytest
import torch
from tests.e2e.serving import ROOT, Home, archived, wait_until

pytestmark = pytest.mark.slow  # servers from nothing, with a driver of the tests

DRIVER = '''
"""One GPU."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(handle):
    return "GPU-12"


def nvmlDeviceGetMigMode(handle):
    raise NVMLError("Not Supported")


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(used=3 << 30, free=5 << 30, total=8 << 30)


def nvmlDeviceGetComputeRunningProcesses(handle):
    return []


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=7, memory=5)
'''

NETWORK = """
from torch import nn

class Same(nn.Module):
    def forward(self, rows):
        return rows
"""

HANDLER = """
from modelserver_handlers.base import BaseHandler

class Handler(BaseHandler):
    def handle(self, data, context):
        return ["computed" for _ in data]
"""

USAGE = "gpuId::0 utilization.gpu::7 % utilization.memory::5 % memory.used::3072 MiB"


@pytest.fixture
def driver(tmp_path):
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "pynvml.py").write_text(DRIVER)
    roots = os.pathsep.join(map(str, (folder, ROOT / "app", ROOT / "handlers")))
    return {"PYTHONPATH": roots}


@pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(), reason="needs a torch for CUDA, and no GPU"
)
def test_a_gpu_that_cannot_be_used_is_no_processor(start_server, driver, tmp_path):
    """Its worker does not serve from the CPU: description, readiness and answers say so, and it retries."""
    network = tmp_path / "network.py"
    network.write_text(NETWORK)
    archived(tmp_path, "needs_gpu", HANDLER, model_file=network)
    server = start_server(environment=driver, model_store=tmp_path)
    assert server.register("needs_gpu.mar", synchronous=False).status_code == 202

    def failed_again():
        (worker,) = server.describe("needs_gpu")["workers"]
        # From then on, requests no longer wait for it.
        return worker if worker.get("failedLoads", 0) >= 3 else None

    worker = wait_until(failed_again, "loading is tried again", 90.0)
    answer = server.predict("needs_gpu")

    assert worker["status"] == "LOADING"
    assert worker["failure"].startswith("GpuNotUsable: GPU 0 was assigned and cannot be used: ")
    assert f"is built for CUDA {torch.version.cuda}" in worker["failure"]
    assert (worker["gpu"], worker["gpuUsage"]) == (True, USAGE)
    assert server.inference.get("/readyz").status_code == 503
    assert server.inference.get("/v2/models/needs_gpu/ready").status_code == 503
    assert answer.status_code == 503
    assert "GPU 0 was assigned and cannot be used" in answer.json()["message"]


def test_a_server_without_a_gpu_does_not_start_if_one_is_required(home, model_store, driver, tmp_path):
    """One line says what is missing and why; with the GPU it starts."""
    config = {"model_store": model_store, "require_gpu": "true"}
    hidden = Home(tmp_path / "hidden", {**driver, "CUDA_VISIBLE_DEVICES": "-1"})
    run = hidden.run("--start", "--foreground", "--ts-config", hidden.write_config(config))

    assert run.returncode == 1
    assert "require_gpu=true: no GPU is available: CUDA_VISIBLE_DEVICES=-1 names none of the 1 GPUs" in (
        run.stderr + run.stdout
    )


def test_a_model_on_the_cpu_does_not_load_if_a_gpu_is_required(start_server, driver, tmp_path):
    """If the handler chose the CPU, the error says how to allow this."""
    source = """
        class Handler:
            device = "cpu"

            def handle(self, data, context):
                return ["computed" for _ in data]
        """
    archived(tmp_path, "chooses", source)
    config = tmp_path / "config.yaml"
    config.write_text("deviceType: cpu\n")
    archived(tmp_path, "intended", source, config_file=config)
    server = start_server(environment=driver, model_store=tmp_path, require_gpu="true")
    refused = server.register("chooses.mar")

    assert refused.status_code == 500
    assert "GPU 0 was assigned (require_gpu=true), and the handler computes on the CPU" in refused.text
    assert server.registered("intended.mar").predict("intended").text == "computed"
    assert server.describe("intended")["workers"][0]["gpu"] is False
