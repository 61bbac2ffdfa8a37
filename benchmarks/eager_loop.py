"""The bare PyTorch loop that a server is compared with: the network, eager, batch after batch, nothing else.

``python -m benchmarks.eager_loop`` is a process of its own: a line ``KIND SECONDS`` on standard input is
answered by a line of JSON with the pictures per second, or why there are none. ``model`` takes prepared
tensors; ``decode`` opens and transforms each picture and names the five likeliest classes; the FORMS of
``benchmarks.networks`` do that too, in other ways and with their pictures decoded in several threads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Sample, busy_seconds
from benchmarks.servers import BenchmarkError, CpuMeter, answer_of, talking

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

WARMUP_BATCHES = 2


@dataclass(frozen=True, slots=True)
class EagerLoop:
    """The running process, ready to work."""

    process: subprocess.Popen[str]
    threads: int

    def prepare(self, work: str) -> None:
        """Make and warm a kind of work, so that compiling it is not measured. Raises BenchmarkError."""
        self._rate(work, 0.0)

    def run(self, work: str, seconds: float, repetition: int) -> Sample:
        """Loop for ``seconds``; the rate is in pictures. Raises BenchmarkError if it cannot."""
        busy, meter, began = busy_seconds(), CpuMeter(self.process.pid), time.perf_counter()
        rate = self._rate(work, seconds)
        other = (busy_seconds() - busy - meter.used()) / (time.perf_counter() - began)
        return Sample(f"loop, {work}", 0, repetition, rate=rate, other_cpus=max(0.0, other))

    def _rate(self, work: str, seconds: float) -> float:
        answer = self._ask(f"{work} {seconds}")
        if "error" in answer:
            raise BenchmarkError(f"loop, {work}: {answer['error']}")
        return float(answer["rate"])

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return answer_of(self.process)


@contextlib.contextmanager
def eager_loop(archive: Path, arch: str, image: Path, batch: int, threads: int) -> Iterator[EagerLoop]:
    """The process with the network of ``archive``; it ends with the block. Raises BenchmarkError."""
    files = (str(archive.resolve()), arch, str(image.resolve()))
    arguments = [*files, "--batch", str(batch), "--threads", str(threads)]
    with talking("benchmarks.eager_loop", arguments, threads) as process:
        yield EagerLoop(process, answer_of(process)["threads"])


def rate_of(work: Callable[[], object], batch: int, seconds: float) -> float:
    """Pictures per second over whole batches, for at least ``seconds`` after a warm-up."""
    for _ in range(WARMUP_BATCHES):
        work()
    batches, began = 0, time.perf_counter()
    while True:
        work()
        batches += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return batches * batch / elapsed


def main() -> None:
    """Answer the lines of standard input until it ends."""
    parser = argparse.ArgumentParser("benchmarks.eager_loop", description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("arch")
    parser.add_argument("image", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    import torch  # noqa: PLC0415 - only the looping process needs it

    from benchmarks.networks import MLP, Network, Rows  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    network = Rows() if options.arch == MLP else Network(options.archive, options.arch)
    bodies = [options.image.read_bytes()] * options.batch
    print(json.dumps({"threads": torch.get_num_threads()}), flush=True)
    made: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        kind, _, seconds = line.strip().rpartition(" ")
        try:
            if kind not in made:
                made[kind] = network.work(kind, bodies)
            answer: dict[str, object] = {"rate": rate_of(made[kind], options.batch, float(seconds))}
        except Exception as error:  # noqa: BLE001 - whatever torch says is the answer
            answer = {"error": repr(error)[:500]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
