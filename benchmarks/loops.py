"""PyTorch loops in a process of their own, which a server is compared with.

The process answers a line ``KIND SECONDS`` on standard input by a line of JSON with the pictures per second,
or why there are none.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from benchmarks.measure import Sample, busy_seconds
from benchmarks.servers import ROOT, BenchmarkError, cpu_meter, thread_variables
from modelserver.tools.tune.own_server import own_environment

WARMUP_CALLS = 3
IN_FLIGHT = 4  # calls after which the loop waits for the device


@dataclass(frozen=True, slots=True)
class Work:
    """``call`` handles so many ``pictures``; ``wait`` returns when the device has done all of it."""

    call: Callable[[], object]
    pictures: int
    wait: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Loops:
    """The running process, ready to work; ``device`` is what it computes on, in words."""

    process: subprocess.Popen[str]
    device: str

    def prepare(self, kind: str) -> None:
        """Make and warm a kind of work, so that compiling it is not measured. Raises BenchmarkError."""
        self._rate(kind, 0.0)

    def run(self, kind: str, seconds: float, subject: str, repetition: int) -> Sample:
        """Loop for ``seconds``; the rate is in pictures. Raises BenchmarkError if it cannot."""
        busy, used, began = busy_seconds(), cpu_meter(self.process.pid), time.perf_counter()
        rate = self._rate(kind, seconds)
        other = (busy_seconds() - busy - used()) / (time.perf_counter() - began)
        return Sample(subject, 0, repetition, rate=rate, other_cpus=max(0.0, other))

    def _rate(self, kind: str, seconds: float) -> float:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{kind} {seconds}\n")
            self.process.stdin.flush()
        return float(_answer_of(self.process, kind)["rate"])


@contextlib.contextmanager
def loops(module: str, options: Mapping[str, object], threads: int | None) -> Iterator[Loops]:
    """The process of a module that calls :func:`serve`; it ends with the block. Raises BenchmarkError."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(options)],
        cwd=ROOT,
        env=own_environment(os.environ) | thread_variables(threads),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield Loops(child, str(_answer_of(child, module)["device"]))
        finally:
            child.kill()


def _answer_of(child: subprocess.Popen[str], what: str) -> dict[str, Any]:
    """The next line of the process. Raises BenchmarkError if there is none, or if it is an error."""
    assert child.stdout is not None
    line = child.stdout.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"error": f"ended with status {child.wait()}"}
    if "error" in answer:
        raise BenchmarkError(f"loop, {what}: {answer['error']}")
    return answer


def options_of_process() -> SimpleNamespace:
    """In the process: the options of :func:`loops`."""
    return SimpleNamespace(**json.loads(sys.argv[1]))


def serve(device: str, make: Callable[[str], Work]) -> None:
    """In the process: answer the lines of standard input until it ends."""
    print(json.dumps({"device": device}), flush=True)
    made: dict[str, Work] = {}
    for line in sys.stdin:
        kind, _, seconds = line.strip().rpartition(" ")
        try:
            if kind not in made:
                made[kind] = make(kind)
            answer: dict[str, object] = {"rate": rate_of(made[kind], float(seconds))}
        except Exception as error:  # noqa: BLE001 - whatever torch says is the answer
            answer = {"error": repr(error)[:500]}
        print(json.dumps(answer), flush=True)


def rate_of(work: Work, seconds: float) -> float:
    """Pictures per second over whole calls, for at least ``seconds`` after a warm-up."""
    for _ in range(WARMUP_CALLS):
        work.call()
    work.wait()
    calls, began = 0, time.perf_counter()
    while not calls or time.perf_counter() - began < seconds:
        work.call()
        calls += 1
        if calls % IN_FLIGHT == 0:
            work.wait()
    work.wait()
    return calls * work.pictures / (time.perf_counter() - began)
