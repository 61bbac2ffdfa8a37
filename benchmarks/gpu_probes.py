"""What a GPU, its driver and the installed torch do with the parts of this server that use them.

Each probe returns whether it saw what the server relies on, and figures. It needs a process of its own: what
an error does to CUDA stays until the process ends. ``benchmarks.gpu_first`` runs them by their names.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy
import torch
import torchvision
from PIL import Image

from benchmarks.servers import ROOT
from modelserver.engine.telemetry.gpus import gpus
from modelserver.engine.worker.work import is_out_of_memory
from modelserver_handlers.context import Context
from modelserver_handlers.errors import first_line
from modelserver_handlers.image_classifier import ImageClassifier, classic_processing
from modelserver_handlers.networks.cuda_graphs import batch_sizes, record_graphs
from modelserver_handlers.networks.precision import use_bf16
from modelserver_handlers.pictures import nvjpeg as gpu_jpegs
from modelserver_handlers.pictures.resampling import resize_crops
from modelserver_handlers.pictures.transfer import CopyStream, DeviceCropBuffer, HostCropBuffer
from modelserver_handlers.zoo import random_network

Outcome = tuple[bool, dict[str, object]]

GPU = torch.device("cuda", 0)
PICTURE = (3, 224, 224)
MIB = 1 << 20
# Imports what a worker may have when it is forked, and checks as the process does that forks it.
IMPORTS = """
from modelserver.ext.forking.fork_server import check_fitness, open_descriptors
before = open_descriptors()
import importlib, os, torch, torchvision
from modelserver_handlers import BUILT_IN
for module in BUILT_IN.values():
    importlib.import_module(f"modelserver_handlers.{module}")
importlib.import_module("modelserver_handlers.huggingface").preload()
check_fitness(before)
"""
_FORKS = """
def use_in_a_child():
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(4, device="cuda").sum().item()
        except Exception as error:
            print("child:", error, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]

first = use_in_a_child()
torch.cuda.is_available()
print("after is_available():", "works" if use_in_a_child() == 0 else "fails", flush=True)
os._exit(first != 0)
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a probe computes. ``side`` is that of the matrices that keep a stream busy."""

    arch: str = "resnet152"
    smaller: str = "resnet50"
    batch: int = 64
    rounds: int = 20
    side: int = 8192
    backend: str = "inductor"


REHEARSAL = Scale("mobilenet_v3_small", "mobilenet_v3_small", batch=4, rounds=2, side=64, backend="eager")


def versions(_scale: Scale) -> Outcome:
    """NVML and torch see the same GPUs, and torch has kernels for them."""
    properties = torch.cuda.get_device_properties(0)
    kernels = torch.cuda.get_arch_list()
    gpus.read()
    fitting = [f"sm_{properties.major}{minor}" for minor in range(properties.minor + 1)]
    figures = {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "torch": f"{torch.__version__} for CUDA {torch.version.cuda}, kernels {' '.join(kernels)}",
        "torchvision": torchvision.__version__,
        "GPUs": f"torch {torch.cuda.device_count()}, NVML {gpus.count()}",
        "usage": gpus.usage(0),
    }
    same = torch.cuda.device_count() == gpus.count()
    return same and any(each.rstrip("a") in fitting for each in kernels), figures


def fork(_scale: Scale) -> Outcome:
    """After the imports of all built-in handlers a forked process can use CUDA."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS + _FORKS],
        cwd=ROOT,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, {"said": (done.stdout + done.stderr).strip()[-500:]}


def buffer(scale: Scale) -> Outcome:
    """Copies and normalisation on the GPU give the processor's floats, beside a busy default stream."""
    processing, stream = classic_processing(), CopyStream(GPU)
    matrix = torch.randn(scale.side, scale.side, device="cuda").to(torch.bfloat16)
    worst, times = 0.0, []
    for count in (1, 7, *[scale.batch] * 3):
        here, there = HostCropBuffer(processing, count), DeviceCropBuffer(processing, count, stream)
        for place, crop in enumerate(_random_bytes(count, 224, 224, 3)):
            here.put(place, crop)
            there.put(place, crop)
        for _ in range(scale.rounds):
            matrix @ matrix
        began = time.perf_counter()
        batch = there.finish(range(count))
        times.append(_milliseconds(began))
        worst = max(worst, _difference(batch.cpu(), here.finish(range(count))))
        torch.cuda.synchronize()
    return worst < 1e-6 and times[-1] < 5, {"difference": worst, "ms per batch": times}


def resampling(_scale: Scale) -> Outcome:
    """Resizing on the GPU gives the processor's bytes, also where TF32 is allowed."""
    processing, worst = classic_processing(), {}
    for width, height in ((500, 375), (1024, 768), (375, 500)):
        pictures = _random_bytes(2, 3, height, width)
        frame = processing.frame((width, height))
        assert frame is not None
        frames = [frame] * len(pictures)
        here = torch.stack(resize_crops(list(pictures), frames, processing.filter))
        for allowed in ("highest", "high"):
            torch.set_float32_matmul_precision(allowed)
            there = torch.stack(resize_crops(list(pictures.to(GPU)), frames, processing.filter)).cpu()
            worst[f"{width} x {height}, {allowed}"] = _difference(there, here)
    return not any(worst.values()), {"differences": worst}


def nvjpeg(scale: Scale) -> Outcome:
    """Pictures of many sizes are decoded at a third of the rate of one size at least, again and again."""
    processing = classic_processing()
    decoder = gpu_jpegs.start_decoder(GPU, processing)
    if decoder is None:
        return False, {"nvJPEG": "cannot be used"}
    count = scale.batch
    alike = [_jpeg(500, 375)] * count
    encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in alike]
    alone = count / _seconds(lambda: gpu_jpegs.decode_on_gpu(encoded, GPU), 5)
    one_size = count / _seconds(lambda: decoder.crops(alike, processing), 5)
    new = []
    for more in (0, 3):
        files = [_jpeg(400 + 7 * i + more, 900 - 5 * i + more, i) for i in range(count)]
        began = time.perf_counter()
        decoder.crops(files, processing)
        torch.cuda.synchronize()
        new.append(count / (time.perf_counter() - began))
    try:
        decoder.crops([alike[0], alike[0][:3000]], processing)
        damaged = "not noticed"
    except RuntimeError as error:
        damaged = first_line(error)
    free = torch.cuda.mem_get_info()[0]
    for _ in range(50):
        decoder.crops(alike, processing)
    grown = (free - torch.cuda.mem_get_info()[0]) / MIB
    figures = {"decoding alone/s": alone, "one size/s": one_size, "new sizes/s": new}
    return grown < 64 and min(new) > one_size / 3, {**figures, "damaged": damaged, "grown MiB": grown}


def graphs(scale: Scale) -> Outcome:
    """Replays equal eager runs for every size of a batch, and are faster for one row."""
    right = True
    figures: dict[str, object] = {}
    for name in ("fp32", "bf16"):
        network = random_network(scale.smaller, 0).to(GPU).eval()
        network = (use_bf16(network) if name == "bf16" else network).to(memory_format=torch.channels_last)
        run = partial(_infer, network)
        began, before = time.perf_counter(), torch.cuda.memory_reserved()
        recorded = record_graphs(run, PICTURE, batch_sizes(scale.batch), GPU, torch.channels_last)
        if recorded is None:
            return False, {name: "could not be recorded", **figures}
        took, taken = time.perf_counter() - began, (torch.cuda.memory_reserved() - before) / MIB
        worst = 0.0
        for count in (1, 2, 3, scale.batch // 2 + 1, scale.batch):
            batch = _pictures(count)
            right_answer = run(batch)
            worst = max(worst, _difference(recorded(batch), right_answer) / right_answer.abs().max().item())
        one = _pictures(1)
        times = [1e3 * _seconds(partial(each, one), scale.rounds) for each in (run, recorded)]
        cost = {"recording s": took, "MiB": taken}
        figures[name] = {"deviation": worst, "ms for one, eager and replayed": times, **cost}
        right = right and worst < 0.05 and times[1] < times[0]
    return right, figures


def failed_capture(_scale: Scale) -> Outcome:
    """After a network that cannot be recorded, the stream is the default one and memory is used again.

    An error with which the worker starts anew, without graphs, is as good.
    """

    def run(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return batch * batch.sum().item()

    try:
        recorded = record_graphs(run, PICTURE, (1, 2), GPU) is not None
    except RuntimeError as error:
        return True, {"raised": f"{type(error).__name__}: {first_line(error)}"}
    default = torch.cuda.current_stream() == torch.cuda.default_stream()
    stream, before = CopyStream(GPU), torch.cuda.memory_reserved()
    for _ in range(100):
        with stream.working():
            batch = torch.empty(64, *PICTURE, device="cuda")
        stream.hand_over(batch)
        batch.sum().item()
        del batch
    grown = (torch.cuda.memory_reserved() - before) / MIB
    emptied = _error_of(torch.cuda.empty_cache)
    figures = {"recorded": recorded, "default stream": default, "grown MiB": grown, "empty_cache": emptied}
    return not recorded and default and grown < 200 and emptied == "none", figures


def poisoned(_scale: Scale) -> Outcome:
    """A failed assertion on the device is no lack of memory, and afterwards nothing works."""
    table, wrong = torch.zeros(4, device="cuda"), torch.tensor([9], device="cuda")
    try:
        table[wrong].cpu()
    except Exception as error:  # noqa: BLE001 - its class is what is probed
        first = error
    else:
        return False, {"error": "none"}
    after = _error_of(lambda: torch.ones(1, device="cuda").item())
    memory = is_out_of_memory(first)
    text = f"{type(first).__name__}: {first_line(first)}"
    figures = {"error": text, "told as out of memory": memory, "afterwards": after}
    return "CUDA error" in text and after != "none" and not memory, figures


def out_of_memory(_scale: Scale) -> Outcome:
    """After an allocation that fails, half of the memory can be allocated."""
    free = torch.cuda.mem_get_info()[0]
    too_much = _error_of(lambda: torch.empty(free + (1 << 30), dtype=torch.uint8, device="cuda"))
    half = _error_of(lambda: torch.empty(free // 2, dtype=torch.uint8, device="cuda"))
    reserved = torch.cuda.memory_reserved() / MIB
    figures = {"too much": too_much, "half": half, "reserved MiB afterwards": reserved}
    return too_much.startswith("OutOfMemoryError") and half == "none", figures


def compiled_requests(scale: Scale) -> Outcome:
    """An image classifier with ``pt2: compile`` compiles nothing more after it is loaded."""
    settings = {"torchvision": {"arch": "resnet18", "weights": "random"}}
    document = {"handler": settings, "pt2": {"compile": {"enable": True, "backend": scale.backend}}}
    classifier, file = ImageClassifier(), _jpeg(500, 375)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        manifest = {"model": {"modelName": "compiled"}}
        context = Context("compiled", folder, manifest, 32, 0, "0.12.0", model_yaml_config=document)
        classifier.initialize(context)
    loading, before, times = time.perf_counter() - began, _compilations(), []
    for count in (32, 1, 16, 8, 32, 1):
        began = time.perf_counter()
        classifier.inference(classifier.preprocess([{"data": file}] * count))
        torch.cuda.synchronize()
        times.append(_milliseconds(began))
    more = _compilations() - before
    figures = {"loading s": loading, "compiled": before, "compiled in requests": more, "requests ms": times}
    return before > 0 and more == 0, figures


def _infer(network: torch.nn.Module, batch: torch.Tensor, kind: torch.dtype = torch.float32) -> torch.Tensor:
    with torch.inference_mode():
        answers: torch.Tensor = network(batch.to(kind))
    return answers


def _pictures(count: int) -> torch.Tensor:
    """As a handler passes them to the network."""
    return torch.randn(count, *PICTURE, device="cuda").contiguous(memory_format=torch.channels_last)


def _random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def _jpeg(width: int, height: int, seed: int = 0) -> bytes:
    """A smooth picture of this size."""
    shape = (height // 16 + 1, width // 16 + 1, 3)
    cells = numpy.random.default_rng(seed).integers(0, 256, shape, dtype=numpy.uint8)
    file = io.BytesIO()
    picture = Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC)
    picture.save(file, "JPEG", quality=90)
    return file.getvalue()


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one.double() - other.double()).abs().max().item()


def _milliseconds(since: float) -> float:
    return 1e3 * (time.perf_counter() - since)


def _seconds(work: Callable[[], object], rounds: int) -> float:
    """Of one call, when the GPU has done all of them."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / rounds


def _error_of(work: Callable[[], object]) -> str:
    """The error of a call in words, ``none`` if there is none. Nothing of it is referenced afterwards."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever torch raises is the figure
        return f"{type(error).__name__}: {first_line(error)}"
    return "none"


def _compilations() -> int:
    from torch._dynamo.utils import counters  # noqa: PLC0415 - seconds of imports

    return int(counters["stats"]["unique_graphs"])
