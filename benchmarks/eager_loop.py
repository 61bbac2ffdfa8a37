"""The bare PyTorch loop that a server is compared with: the network, eager, batch after batch, nothing else.

``python -m benchmarks.eager_loop`` is a process of its own: a line ``model SECONDS`` or ``decode SECONDS`` on
standard input is answered by a line of JSON with the pictures per second. ``model`` takes prepared tensors;
``decode`` opens and transforms each picture and names the five likeliest classes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.measure import Sample, busy_seconds
from benchmarks.servers import ROOT, BenchmarkError, CpuMeter, inherited_environment, thread_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Work = Literal["model", "decode"]
WARMUP_BATCHES = 2


@dataclass(frozen=True, slots=True)
class EagerLoop:
    """The running process, ready to work."""

    process: subprocess.Popen[str]
    threads: int

    def run(self, work: Work, seconds: float, repetition: int) -> Sample:
        """Loop for ``seconds``; the rate is in pictures. Raises BenchmarkError if the process has ended."""
        busy, meter, began = busy_seconds(), CpuMeter(self.process.pid), time.perf_counter()
        rate = self._ask(f"{work} {seconds}")["rate"]
        other = (busy_seconds() - busy - meter.used()) / (time.perf_counter() - began)
        return Sample(f"loop, {work}", 0, repetition, rate=rate, other_cpus=max(0.0, other))

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return read_answer(self.process)


@contextlib.contextmanager
def eager_loop(archive: Path, arch: str, image: Path, batch: int, threads: int) -> Iterator[EagerLoop]:
    """The process with the network of ``archive``; it ends with the block. Raises BenchmarkError."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.eager_loop",
        str(archive.resolve()),
        arch,
        str(image.resolve()),
    ]
    command += ["--batch", str(batch), "--threads", str(threads)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=inherited_environment() | thread_variables(threads),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield EagerLoop(process, read_answer(process)["threads"])
        finally:
            process.kill()


def read_answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of the process. Raises BenchmarkError if there is none."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchmarkError(f"the PyTorch loop ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


class Network:
    """The network of an archive with plain torch, torchvision and Pillow."""

    def __init__(self, archive: Path, arch: str) -> None:
        import torch  # noqa: PLC0415 - only the looping process needs it
        from torchvision import models, transforms  # noqa: PLC0415

        self._torch = torch
        self.model = models.get_model(arch, weights=None)
        with zipfile.ZipFile(archive) as parts:
            state = io.BytesIO(parts.read(f"{arch}.pth"))
        self.model.load_state_dict(torch.load(state, weights_only=True))
        self.model.eval()
        self._transform = transforms.Compose(
            [
                transforms.Resize(256),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def decode(self, pictures: list[bytes]) -> Any:
        """Encoded pictures to one tensor, one after another."""
        from PIL import Image  # noqa: PLC0415

        opened = (Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures)
        return self._torch.stack([self._transform(picture) for picture in opened])

    def classify(self, pictures: list[bytes]) -> list[dict[int, float]]:
        """All that a request asks for: the five likeliest classes of each picture."""
        with self._torch.inference_mode():
            scores = self._torch.softmax(self.model(self.decode(pictures)), dim=1)
            best, classes = self._torch.topk(scores, 5, dim=1)
        return [dict(zip(*row)) for row in zip(classes.tolist(), best.tolist())]  # noqa: B905 - same lengths

    def work(self, kind: Work, pictures: list[bytes]) -> Callable[[], object]:
        """One batch, to be repeated."""
        if kind == "decode":
            return lambda: self.classify(pictures)
        tensor = self.decode(pictures)

        def model_only() -> object:
            with self._torch.inference_mode():
                return self.model(tensor)

        return model_only


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
    import torch  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    network = Network(options.archive, options.arch)
    pictures = [options.image.read_bytes()] * options.batch
    print(json.dumps({"threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        kind, _, seconds = line.partition(" ")
        work = network.work("decode" if kind == "decode" else "model", pictures)
        print(json.dumps({"rate": rate_of(work, options.batch, float(seconds))}), flush=True)


if __name__ == "__main__":
    main()
