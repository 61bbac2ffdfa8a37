"""The first look at a GPU: figures and verdicts of all that this server does with one, in about 45 minutes.

Each step runs in a process of its own for at most ten minutes. What it prints goes to ``--out`` at once, and
then its outcome as a line of JSON. Steps that have one there are skipped: given again, the command continues.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from benchmarks import gpu
from benchmarks.archives import build_resnet, photograph
from benchmarks.gpu_utilisation import used_mib
from benchmarks.load import Load, run_load
from benchmarks.measure import Sample, figures, interleaved, named, ratio, sample
from benchmarks.options import run, tell
from benchmarks.peers.install import install
from benchmarks.peers.launch import SUBJECTS
from benchmarks.peers.packages import PEERS, missing
from benchmarks.report import heading, machine, plain
from benchmarks.servers import ROOT, BenchmarkError, inherited_environment, memory_of, model_server
from benchmarks.side_by_side import Plan, largest_rates, measure_work
from benchmarks.works import Work
from modelserver.engine.resources import usable_cpus
from modelserver.engine.telemetry.gpus import gpus
from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.tune.own_server import stop_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Outcome = tuple[bool, dict[str, object]]

PROBES = (
    *("versions", "fork", "landing", "resampling", "nvjpeg", "graphs", "failed_capture", "poisoned"),
    *("out_of_memory", "compiled_requests", "nvml_calls", "launching_beside_decoders", "ceilings"),
)
FAULTS = ("poisoned", "too_large", "killed", "no_gpu", "processor_pt2")
PASS, FAIL, SKIPPED, BROKE, LATE, REHEARSED = "PASS", "FAIL", "SKIPPED", "BROKE", "LATE", "REHEARSED"
RESULT = "RESULT "  # begins the line of a step's process that has its outcome
NOTHING = "a rehearsal: these figures mean nothing"
FLAT_MIB, FLAT_SHARE = 128, 0.05  # by which the memory of a steady run may grow, on the GPU and of processes
AHEAD_OF_TORCHSERVE = {1: 3.0, 4: 1.5}  # times, by workers
TF32_GAIN = 1.5
ENCODER = '''
import torch
from torch import nn

class Encoder(nn.Module):
    """BERT-base's encoder with random weights: rows of 128 numbers of words to 8 numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        heads, inner = {width} // 64, 4 * {width}
        layer = nn.TransformerEncoderLayer({width}, heads, inner, activation="gelu", batch_first=True)
        self.words = nn.Embedding(30522, {width})
        self.layers = nn.TransformerEncoder(layer, {layers}, enable_nested_tensor=False)

    def forward(self, words):
        return self.layers(self.words(words))[:, 0, :8]
'''


@dataclass(frozen=True, slots=True)
class Step:
    """``run`` returns whether it went as it should, and figures; its process has so many minutes."""

    run: Callable[[argparse.Namespace], Outcome]
    minutes: float = 10.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks.gpu first", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("gpu-first.txt"), help="the file to send (default: gpu-first.txt)")
    add(
        "--steps",
        type=lambda text: text.split(","),
        help=f"only these, or those that begin so: {', '.join(STEPS)}",
    )
    add("--from", dest="begin", choices=STEPS, metavar="STEP", help="this one and all after it")
    add("--torchserve", type=Path, metavar="DIR", help="wheels of TorchServe and what it needs, and a Java")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--dry-run", action="store_true", help="all steps, shortly; the figures mean nothing")
    add("--one", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.device == "cpu" and not options.dry_run:
        parser.error("--device cpu is for --dry-run")
    if unknown := [each for each in options.steps or () if not any(map(partial(_is_of, each), STEPS))]:
        parser.error(f"unknown: {', '.join(unknown)}")
    return options


def _is_of(chosen: str, name: str) -> bool:
    return name == chosen or name.startswith(f"{chosen}-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the steps that are left, and say how all went; 1 if one did not go as it should."""
    options = parse(arguments)
    if options.one:
        return run_one(options)
    if options.device == "cuda" and not gpus.read():
        print("NVML lists no visible GPU; --device cpu --dry-run rehearses without one", file=sys.stderr)
        return 1
    with options.out.open("a+", encoding="utf-8") as file:
        report = Report(file)
        report.say(heading("First look at a GPU", machine()))
        report.say(_of_driver())
        for name in chosen_steps(options, report.outcomes(rehearsed=options.dry_run)):
            report.say(f"== {name}")
            report.add(perform(name, options, report.say))
        outcomes = report.outcomes(rehearsed=options.dry_run)
        for each in outcomes.values():
            report.say(f"{each['verdict']:<9} {each['step']} ({each['seconds']:.0f} s)")
    left = [name for name in STEPS if name not in outcomes]
    print(f"Not yet: {', '.join(left)}" if left else f"All steps are in {options.out}")
    return 1 if {FAIL, BROKE, LATE} & {each["verdict"] for each in outcomes.values()} else 0


def chosen_steps(options: argparse.Namespace, outcomes: Mapping[str, object]) -> list[str]:
    """Those that the command line names, else those without an outcome."""
    if options.steps:
        return [name for name in STEPS if any(_is_of(each, name) for each in options.steps)]
    names = list(STEPS)
    if options.begin:
        return names[names.index(options.begin) :]
    return [name for name in names if name not in outcomes]


class Report:
    """The file: lines of JSON are outcomes, all others begin with ``#``. All of it is printed, too."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def say(self, text: str) -> None:
        """Lines for reading."""
        for line in text.splitlines():
            self._write(f"# {line}".rstrip())

    def add(self, outcome: Mapping[str, object]) -> None:
        """The outcome of a step."""
        self._write(json.dumps(plain(outcome)))

    def outcomes(self, *, rehearsed: bool) -> dict[str, dict[str, Any]]:
        """The last one of each step, by name: of rehearsals, or of real runs."""
        self._file.seek(0)
        lines = [json.loads(line) for line in self._file if line.startswith("{")]
        return {each["step"]: each for each in lines if each["rehearsed"] == rehearsed}

    def _write(self, line: str) -> None:
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()


def perform(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, object]:
    """Run a step in a process of its own, and tell what it prints; returns its outcome."""
    began = time.monotonic()
    child = subprocess.Popen(
        command_of(name, options),
        cwd=ROOT,
        env=inherited_environment() | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        stop_process(child)

    result: dict[str, object] = {"verdict": BROKE}
    timer = threading.Timer(60 * STEPS[name].minutes, end)
    timer.start()
    with child:
        try:
            assert child.stdout is not None
            for line in (each.decode("utf-8", "replace") for each in child.stdout):
                if line.startswith(RESULT):
                    result = json.loads(line.removeprefix(RESULT))
                else:
                    say(line.rstrip())
        finally:
            timer.cancel()
            stop_process(child)
    if late.is_set():
        result["verdict"] = LATE
    return {"step": name, **result, "seconds": time.monotonic() - began, "rehearsed": options.dry_run}


def command_of(name: str, options: argparse.Namespace) -> list[str]:
    """What a step's process runs."""
    command = [sys.executable, "-m", "benchmarks.gpu_first", "--one", name, "--device", options.device]
    command += ["--torchserve", str(options.torchserve.resolve())] if options.torchserve else []
    return command + (["--dry-run"] if options.dry_run else [])


def run_one(options: argparse.Namespace) -> int:
    """A step, in its own process; prints its outcome."""
    try:
        passed, found = STEPS[options.one].run(options)
        verdict = REHEARSED if options.dry_run else PASS if passed else FAIL
    except gpu.Skipped as reason:
        verdict, found = SKIPPED, {"reason": str(reason)}
    note = {"note": NOTHING} if options.dry_run else {}
    print(RESULT + json.dumps(plain({"verdict": verdict, "figures": found, **note})), flush=True)
    # Without the finalizers of libraries, which hang or abort where CUDA is broken.
    os._exit(0)


def _of_driver() -> str:
    """What the driver says of the GPUs and of who uses them."""
    try:
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    return done.stdout + done.stderr


# Steps


def probe(options: argparse.Namespace, name: str) -> Outcome:
    """One of the probes; without a GPU on the tests' simulated one."""
    if options.device == "cpu":
        importlib.import_module("tests.simulated_gpu").SimulatedGpus().install()
    probes = importlib.import_module("benchmarks.gpu_probes")
    print(probes.PROBES[name].__doc__)
    outcome: Outcome = probes.PROBES[name](probes.REHEARSAL if options.dry_run else probes.Scale())
    return outcome


def fault(options: argparse.Namespace, name: str) -> Outcome:
    """One of the faults of a real server."""
    faults = importlib.import_module("benchmarks.gpu_faults")
    print(faults.FAULTS[name].__doc__)
    outcome: Outcome = faults.FAULTS[name](options)
    return outcome


def resnet(options: argparse.Namespace, *flags: str) -> Outcome:
    """ResNet-152 behind the server, beside the loops; it should reach its marks."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        out = Path(folder) / "figures.json"
        command = [*flags, "--device", options.device, "--batch", "64", "--reps", "2", "--duration", "5"]
        command += ["--connections", "1,32,128,512", "--out", str(out)]
        status = gpu.main(command + (["--dry-run"] if options.dry_run else []))
        if not out.exists():
            raise BenchmarkError("there are no figures")
        document = json.loads(out.read_text("utf-8"))
    del document["samples"], document["machine"]
    return status == 0 and all(mark["reached"] for mark in document["marks"]), document


def torchserve(options: argparse.Namespace, workers: int) -> Outcome:
    """TorchServe without its logs beside this server: the same archive, client, batch and workers."""
    arch, seconds = ("resnet18", 1.0) if options.dry_run else ("resnet152", 8.0)
    names = ("window", "adaptive", "torchserve-quiet")
    connections = (4,) if options.dry_run else (128, 512)
    work = Work(
        "gpu", "ResNet on a GPU", "resnet", 64, 20 if workers == 1 else 100, connections, workers=workers
    )
    with tempfile.TemporaryDirectory(prefix="bm-") as name:
        folder = Path(name)
        peers = _install_torchserve(options.torchserve, folder)
        (folder / "store").mkdir()
        archive = build_resnet(folder / "store", arch)
        plan = Plan(
            folder=folder,
            store=folder / "store",
            archives={"resnet": archive, "resnet auto": archive},
            arch=arch,
            picture=photograph(),
            peers=peers,
            threads=usable_cpus(),
            queue=1000,
            duration=seconds,
            warmup=seconds,
            reps=1 if options.dry_run else 3,
            client="asyncio",
            loops=False,
        )
        result = measure_work(work, [SUBJECTS[each] for each in names], plan)
    if result.refusals:
        raise BenchmarkError(str(result.refusals))
    rates = largest_rates(result.samples)
    ahead = max(rates.get(each, 0.0) for each in names[:2]) / rates.get(names[2], float("nan"))
    return ahead >= AHEAD_OF_TORCHSERVE[workers], {"times": ahead, "figures": figures(result.samples)}


def _install_torchserve(source: Path | None, folder: Path) -> Path:
    """A folder of peers with it, and Java on the path. Raises Skipped."""
    if source is None:
        raise gpu.Skipped("no folder with TorchServe was given (--torchserve DIR)")
    wheels = sorted(source.rglob("*.whl"))
    if not any(wheel.name.startswith("torchserve-") for wheel in wheels):
        raise gpu.Skipped(f"there is no wheel of TorchServe in {source}")
    for archive in source.glob("*.t*z"):
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "java", filter="tar")
    homes = [each.parent for place in (source, folder) for each in place.rglob("bin/java")]
    os.environ["PATH"] = os.pathsep.join([*map(str, homes[:1]), os.environ.get("PATH", os.defpath)])
    install(folder / "peers", PEERS["torchserve"], wheels)
    if reason := missing(folder / "peers", PEERS["torchserve"]):
        raise gpu.Skipped(reason)
    return folder / "peers"


def transformer(options: argparse.Namespace) -> Outcome:
    """BERT-base's encoder with 32 x 128 words: what TF32, the default on GPUs, gains over exact float32."""
    sizes = {"width": 64, "layers": 1} if options.dry_run else {"width": 768, "layers": 12}
    tensor = {"name": "words", "datatype": "INT64", "shape": [32, 128], "data": [*range(1, 4097)]}
    body = json.dumps({"inputs": [tensor]}).encode()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        store = Path(name) / "store"
        store.mkdir()
        (store / "encoder.py").write_text(ENCODER.format(**sizes), "utf-8")
        settings = gpu.gpu_settings(options.device)
        with model_server(store, Path(name) / "server", settings) as server:
            for kind, config in (("default", "{}"), ("fp32", "precision: fp32")):
                (store / "model-config.yaml").write_text(config, "utf-8")
                archive = ArchiveConfig(
                    model_name=kind,
                    version="1.0",
                    handler="base_handler",
                    model_file=store / "encoder.py",
                    config_file=store / "model-config.yaml",
                    export_path=store,
                )
                server.register(build_archive(archive).name, kind, batch_size=32)
            seconds = 0.5 if options.dry_run else 8.0

            def take(kind: str, repetition: int) -> Sample:
                url = server.url(f"/v2/models/{kind}/infer")
                load = Load(url, body, "application/json", 4, seconds, settle=seconds / 5)
                return sample(server, load, kind, repetition, "asyncio")

            taken = interleaved(2, [partial(take, "default"), partial(take, "fp32")], tell)
    gain = ratio(taken, named("default"), named("fp32"))
    return gain is not None and gain >= TF32_GAIN, {"times": gain, "batches/s": figures(taken)}


def steady(options: argparse.Namespace) -> Outcome:
    """Three minutes of one load: the memory of GPU and processes no longer grows after 20 s."""
    seconds, period, settled = (2.0, 0.5, 0.5) if options.dry_run else (180.0, 5.0, 20.0)
    flags = ["--device", options.device, "--precision", "bf16", "--cuda-graphs", "--batch", "64"]
    served = gpu.parse(flags + (["--dry-run"] if options.dry_run else []))
    readings: list[tuple[float, float, float]] = []
    picture, end = photograph(), threading.Event()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        gpu.served(served, Path(folder), picture) as server,
    ):

        def watch() -> None:
            while not end.wait(period):
                at = time.monotonic() - began
                readings.append((at, used_mib() or 0.0, memory_of(server.pid).rss_mb))
                print("{:.0f} s: {:.0f} MiB on the GPU, {:.0f} MB resident".format(*readings[-1]), flush=True)

        began = time.monotonic()
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            outcome = run_load(gpu.load_of(server, picture, 128, seconds), "asyncio")
        finally:
            end.set()
            watcher.join()
    (_, gpu_before, before), (_, gpu_after, after) = (
        next(each for each in readings if each[0] >= settled),
        readings[-1],
    )
    flat = gpu_after < gpu_before + FLAT_MIB and after < before * (1 + FLAT_SHARE)
    return flat and not outcome.failures, {"load": outcome, "s, MiB on the GPU, MB resident": readings}


STEPS: dict[str, Step] = {
    **{f"probe-{name}": Step(partial(probe, name=name), 5.0) for name in PROBES},
    "resnet-tf32": Step(resnet),
    "resnet-fp32": Step(lambda options: resnet(options, "--precision", "fp32")),
    "resnet-bf16": Step(lambda options: resnet(options, "--precision", "bf16", "--cuda-graphs")),
    "resnet-fast": Step(
        lambda options: resnet(options, "--precision", "bf16", "--cuda-graphs", "--fast-decode")
    ),
    "resnet-nvjpeg": Step(
        lambda options: resnet(options, "--precision", "bf16", "--cuda-graphs", "--decode", "nvjpeg")
    ),
    **{f"fault-{name}": Step(partial(fault, name=name), 5.0) for name in FAULTS},
    "torchserve-1": Step(partial(torchserve, workers=1)),
    "torchserve-4": Step(partial(torchserve, workers=4)),
    "transformer": Step(transformer, 5.0),
    "steady": Step(steady, 6.0),
}


if __name__ == "__main__":
    run(main)
