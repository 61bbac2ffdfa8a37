import re
import socket
from unittest.mock import Mock

import pytest

from modelserver.engine.pools import spec as spec_module
from modelserver.engine.pools.spec import Ports, WorkerSpec
from modelserver.engine.pools.variables import ALLOCATOR, worker_variables
from modelserver.engine.wire.messages import Load


def spec(**fields):
    return WorkerSpec(load=Load("m", "1.0", "/", "h.py", 1), threads=3, frame_limit=100, **fields)


OF_TORCHSERVE = {"TS_DECODE_INPUT_REQUEST": "true", "TS_IPEX_ENABLE": "false", "TS_IPEX_GPU_ENABLE": "false"}


def test_environment_has_the_threads():
    """Workers get the server's environment with thread counts, less what is hidden (reference 12.1, F68)."""
    hidden = re.compile("SECRET.*|PASS")
    machine = {"PATH": "/bin", "SECRET_KEY": "1", "PASS": "2", "PASSAGE": "3", "MKL_NUM_THREADS": "9"}
    own = spec(extra_environment={"RANK": "0"}).own_environment()
    environment = worker_variables(machine, hidden, own, 3)

    threads = {"MKL_NUM_THREADS": "9", "OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3"}
    cuda = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert environment == {
        "PATH": "/bin",
        "PASSAGE": "3",
        **threads,
        **cuda,
        "PYTHONUNBUFFERED": "1",
        **OF_TORCHSERVE,
        "RANK": "0",
    }


def test_ports_count_up_past_those_in_use(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        ports = Ports(taken.getsockname()[1])
        first, second = ports.next(), ports.next()

    assert taken is not None
    assert first != second
    assert Ports(0).next() > 0

    monkeypatch.setattr(spec_module, "free_port", Mock(side_effect=OSError("in use")))
    with pytest.raises(OSError, match="no port of 29500 and the next 1000 is free"):
        Ports(29500).next()


def test_what_a_worker_has_beside_its_machines_variables():
    """Its own alone go to another machine: nothing of the server's environment does."""
    own = spec(own_threads=2, extra_environment={"A": "1", "MKL_NUM_THREADS": "4"}).own_environment()

    threads = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "2"}
    assert own == {**threads, **OF_TORCHSERVE, "A": "1"}
    assert "OMP_NUM_THREADS" not in spec().own_environment()


OURS = {ALLOCATOR: "expandable_segments:True"}


def allocators(machine, own, hidden=""):
    """The variables of allocators of GPU memory."""
    result = worker_variables(machine, re.compile(hidden), own, 1)
    return {name: value for name, value in result.items() if "ALLOC_CONF" in name}


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_memory_of_gpus_is_in_expandable_segments(name):
    """Unless the machine's variables, or the model's, say anything by any name; hidden ones do not count."""
    setting = {name: "max_split_size_mb:64"}

    assert allocators({}, {}) == OURS
    assert allocators(setting, {}) == setting
    assert allocators({}, setting) == setting
    assert allocators(setting, {}, hidden="PYTORCH_.*") == OURS
