"""The first look at a GPU: figures and verdicts of all that this server does with one, in about 45 minutes.

Each step runs in a process of its own for at most ten minutes. What it prints goes to ``--out`` at once, and
then its outcome as a line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import gpu
from benchmarks.options import end_by_sigterm
from benchmarks.report import heading, machine, plain
from benchmarks.servers import ROOT, BenchmarkError, piped
from modelserver.engine.telemetry.gpus import gpus
from modelserver.tools.tune.own_server import own_environment, stop_process

Outcome = tuple[bool, dict[str, object]]

PROBES = (
    "versions fork buffer resampling nvjpeg graphs failed_capture poisoned out_of_memory compiled_requests"
)
PASS, FAIL, BROKE, LATE, REHEARSED = "PASS", "FAIL", "BROKE", "LATE", "REHEARSED"
GRAPHS = ("--precision", "bf16", "--cuda-graphs")
RESULT = "RESULT "  # begins the line of a step's process that has its outcome


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
    add("--steps", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP", help=", ".join(STEPS))
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--dry-run", action="store_true", help="all steps, shortly; the figures mean nothing")
    add("--one", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.device == "cpu" and not options.dry_run:
        parser.error("--device cpu is for --dry-run")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the steps, and report how all went; 1 if one did not go as it should."""
    end_by_sigterm()
    options = parse(arguments)
    if options.one:
        return run_one(options)
    if options.device == "cuda" and not gpus.read():
        print("NVML lists no visible GPU; --device cpu --dry-run rehearses without one", file=sys.stderr)
        return 1
    with options.out.open("a", encoding="utf-8") as file:

        def say(text: str) -> None:
            print(text, flush=True)
            print(text, file=file, flush=True)

        say(heading("First look at a GPU", machine()))
        outcomes = []
        for name in options.steps:
            say(f"# == {name}")
            outcomes.append(perform(name, options, say))
            say(json.dumps(plain(outcomes[-1])))
        for each in outcomes:
            say(f"# {each['verdict']:<9} {each['step']} ({each['seconds']:.0f} s)")
    return 1 if {FAIL, BROKE, LATE} & {each["verdict"] for each in outcomes} else 0


def perform(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a step in a process of its own, and pass on what it prints; returns its outcome."""
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu_first", "--one", name, "--device", options.device]
    command += ["--dry-run"] if options.dry_run else []
    child = piped(command, ROOT, own_environment(os.environ) | {"PYTHONUNBUFFERED": "1"})
    late = threading.Event()

    def end() -> None:
        late.set()
        stop_process(child)

    result: dict[str, object] = {"verdict": BROKE}
    timer = threading.Timer(60 * STEPS[name].minutes, end)
    timer.start()
    with child:
        try:
            for line in child.stdout or ():
                if line.startswith(RESULT):
                    result = json.loads(line.removeprefix(RESULT))
                else:
                    say(f"# {line.rstrip()}")
        finally:
            timer.cancel()
            stop_process(child)
    if late.is_set():
        result["verdict"] = LATE
    return {"step": name, **result, "seconds": time.monotonic() - began, "rehearsed": options.dry_run}


def run_one(options: argparse.Namespace) -> int:
    """A step, in its own process; prints its outcome."""
    passed, figures = STEPS[options.one].run(options)
    verdict = REHEARSED if options.dry_run else PASS if passed else FAIL
    print(RESULT + json.dumps(plain({"verdict": verdict, "figures": figures})), flush=True)
    # Without the finalizers of libraries, which hang or abort where CUDA is broken.
    os._exit(0)


# Steps


def probe(options: argparse.Namespace, name: str) -> Outcome:
    """One of the probes; without a GPU on the tests' simulated one."""
    if options.device == "cpu":
        importlib.import_module("tests.simulated_gpu").SimulatedGpus().install()
    probes = importlib.import_module("benchmarks.gpu_probes")
    function = getattr(probes, name)
    print(function.__doc__)
    outcome: Outcome = function(probes.REHEARSAL if options.dry_run else probes.Scale())
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


STEPS: dict[str, Step] = {
    **{f"probe-{name}": Step(partial(probe, name=name), 5.0) for name in PROBES.split()},
    "resnet-tf32": Step(resnet),
    "resnet-fp32": Step(lambda options: resnet(options, "--precision", "fp32")),
    "resnet-bf16": Step(lambda options: resnet(options, *GRAPHS)),
    "resnet-fast": Step(lambda options: resnet(options, *GRAPHS, "--fast-decode")),
    "resnet-nvjpeg": Step(lambda options: resnet(options, *GRAPHS, "--decode", "nvjpeg")),
}


if __name__ == "__main__":
    raise SystemExit(main())
