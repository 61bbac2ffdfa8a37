import asyncio
import os
import sys
from types import SimpleNamespace

import pytest
from tests import recorded_nvml

from modelserver.engine.pools.spec import WorkerState
from modelserver.ext.console import devices as module
from modelserver.ext.console.devices import Devices
from modelserver.models.settings.settings import Settings


def worker(number, *, pid=0, gpu=None, node=None):
    process = SimpleNamespace(pids=[pid], node=node)
    return SimpleNamespace(id=number, pid=pid, gpu=gpu, state=WorkerState.READY, process=process)


def devices_of(*workers, **settings):
    model = SimpleNamespace(name="m", version="1.0", pool=SimpleNamespace(workers=workers))
    registry = SimpleNamespace(versions=lambda: [model])
    return Devices(registry, Settings(**settings))


@pytest.fixture
def recorded(monkeypatch):
    """Two GPUs, of which the second cannot be read."""
    monkeypatch.setitem(sys.modules, "pynvml", recorded_nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("recorded")
async def test_each_gpu_has_its_use_and_workers(monkeypatch):
    """Those of a worker's child processes are its own, as that of an engine."""
    devices = devices_of(worker(9000, pid=os.getpid(), gpu=0), worker(9001, pid=-1, gpu=1))
    engine = await asyncio.create_subprocess_exec("sleep", "100")
    for pid in (os.getpid(), engine.pid):
        monkeypatch.setitem(recorded_nvml.PROCESSES, pid, 1 << 30)
    first, second = (await devices.read())["gpus"]
    engine.kill()
    await engine.wait()
    (on_first,), (on_second,) = first.pop("workers"), second.pop("workers")

    assert first == {"gpu": 0, "busy": 7.0, "memoryBusy": 5.0, "used": 3072, "free": 5120, "percent": 37.5}
    assert second == {"gpu": 1}
    assert (on_first["modelName"], on_first["id"], on_first["gpuMemory"]) == ("m", "9000", 2048)
    assert on_first["memory"] > 0
    assert (on_second["id"], on_second["gpuMemory"], on_second["memory"]) == ("9001", None, 0)


@pytest.mark.usefixtures("recorded")
async def test_gpus_that_the_server_does_not_use_are_left_out():
    assert [each["gpu"] for each in (await devices_of(number_of_gpu=1).read())["gpus"]] == [0]
    assert (await devices_of(number_of_gpu=0).read())["gpus"] == []


async def test_machine_without_gpus_says_why(monkeypatch):
    """It says why; workers on the processor are counted, those on other machines listed by machine."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    node = SimpleNamespace(name="far", resident=5 << 20)
    devices = devices_of(worker(1, pid=os.getpid()), worker(2, pid=7, node=node))
    read = await devices.read()
    (machine,) = read["machines"]

    assert (read["gpus"], read["noGpus"]) == ([], "the package nvidia-ml-py is not installed")
    assert read["onProcessor"]["workers"] == 1
    assert read["onProcessor"]["memory"] > 0
    assert (machine["name"], [each["memory"] for each in machine["workers"]]) == ("far", [5])
    for part in ("memory", "disk"):
        assert read[part]["used"] > 0
        assert read[part]["free"] > 0
        assert 0 < read[part]["percent"] <= 100
    assert 0 <= read["processor"]["percent"] <= 100


async def test_a_reading_is_shared(monkeypatch):
    """All who look at a time get the same one; a new one is taken after a second, also after a failure."""
    devices, now = devices_of(), 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    one, other = await asyncio.gather(devices.read(), devices.read())
    assert one is other
    assert await devices.read() is one
    now = 101.0
    with monkeypatch.context() as broken:
        broken.setattr(devices._monitor, "read", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await devices.read()
    now = 102.0
    assert await devices.read() is not one
