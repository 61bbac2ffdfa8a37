import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest
import torch

from modelserver_handlers.current_device import enter_thread
from modelserver_handlers.errors import GpuNotUsable
from modelserver_handlers.networks import device as module
from modelserver_handlers.networks.device import choose_device

OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by"
    " downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_model_without_a_gpu_is_on_the_cpu(gpus):
    assert choose_device(None) == ("cpu", torch.device("cpu"))
    assert gpus.calls == []


def test_the_gpu_is_the_current_device_of_all_threads(gpus):
    """Otherwise what names no device would happen on the first GPU, in a context of its own."""
    gpus.count = 2
    seen = []

    def compute():
        enter_thread()
        torch.ones(1).cuda()
        seen.append(gpus.current)

    assert choose_device(1) == ("cuda", torch.device("cuda:1"))
    torch.ones(1).cuda()
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()

    assert (gpus.current, seen, gpus.contexts) == (1, [1], {1})


@pytest.mark.usefixtures("no_cuda")
def test_model_is_on_the_processor_or_apples_gpu_without_cuda(monkeypatch):
    with monkeypatch.context() as apple:
        apple.setattr(torch.backends.mps, "is_available", lambda: True)
        assert choose_device(0) == ("mps", torch.device("mps"))

    monkeypatch.setattr(torch.version, "cuda", None)
    warnings = []

    assert choose_device(1, warnings.append) == choose_device(1) == ("cpu", torch.device("cpu"))
    assert warnings == [
        f"GPU 1 was assigned, but torch {torch.__version__} is built for CPUs only: the model runs on the CPU"
    ]


def test_a_gpu_that_is_lost_is_an_error(gpus, monkeypatch, tmp_path):
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (dvs-builder)\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    monkeypatch.setattr(module, "_DRIVER", version)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-12")
    gpus.lost = True
    with pytest.raises(GpuNotUsable) as raised:
        choose_device(3)

    assert str(raised.value) == (
        "GPU 3 was assigned and cannot be used: No CUDA GPUs are available (NVIDIA's driver: 570.158.01; "
        f"torch {torch.__version__} is built for CUDA 13.0, CUDA_VISIBLE_DEVICES=GPU-12)"
    )


@pytest.mark.usefixtures("no_cuda")
def test_an_old_driver_is_named_as_torch_does(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(f"{OLD_DRIVER}.\nMore of it.")))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(module, "_DRIVER", tmp_path / "absent")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(GpuNotUsable) as raised:
        choose_device(0)

    assert str(raised.value) == (
        f"GPU 0 was assigned and cannot be used: {OLD_DRIVER} (NVIDIA's driver: not loaded; "
        f"torch {torch.__version__} is built for CUDA 13.0)"
    )


@pytest.mark.usefixtures("no_cuda")
def test_this_machine_has_no_gpu():
    if torch.version.cuda is None or torch.backends.mps.is_available():
        pytest.skip("torch is not built for CUDA")
    with pytest.raises(GpuNotUsable, match="GPU 0 was assigned and cannot be used: "):
        choose_device(0)


def test_a_number_beyond_cudas_or_a_gpu_off_the_bus_is_refused(gpus, monkeypatch):
    gpus.count = 2
    with pytest.raises(GpuNotUsable, match=r"GPU 2 .* cannot be used: CUDA shows this process only 2, numbe"):
        choose_device(2)
    error = RuntimeError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA")
    monkeypatch.setattr(torch.cuda, "set_device", Mock(side_effect=error))
    with pytest.raises(GpuNotUsable, match=r"cannot be used: CUDA error: unspecified launch failure \("):
        choose_device(0)
    enter_thread()


FAULTS = """
import resource
from modelserver_handlers.networks.device import keep_memory
import torch
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(6 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
keep_memory()
faults()
print(faults())
"""


@pytest.mark.slow  # imports torch in new processes
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's behaviour")
def test_memory_is_reused():
    environment = {"PYTHONPATH": ":".join(sys.path), "THP_MEM_ALLOC_ENABLE": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FAULTS], env=environment | setting, stdout=subprocess.PIPE, text=True
        )
        for setting in ({}, {"MALLOC_MMAP_THRESHOLD_": "65536"})
    ]
    faults = [process.communicate()[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    assert [int(count) < 6000 for count in faults] == [True, False]
