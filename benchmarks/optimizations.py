"""The ways to compute a network on a processor, side by side in one process.

Each way runs one batch in turn, again and again: what else the machine does meets all of them. Figures are
medians: pictures per second, their ratio to the plain network within each turn, the same of processor time,
and how far the outputs are from the plain network's, as a part of the largest one.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__" and not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from typing import TYPE_CHECKING, Any

from benchmarks.options import numbers, run
from benchmarks.report import heading, machine, number, table, write_json
from modelserver.settings.cpus import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SIDE = 224
PLAIN = "plain"
COMPILED = ("compiled, frozen", "compiled, frozen, bf16")
WAYS = (
    PLAIN,
    "channels_last",
    "batch norms folded",
    "folded, channels_last",
    "optimize: auto",
    COMPILED[0],
    "bf16, channels_last",
    "optimize: auto, bf16",
    COMPILED[1],
)


@dataclass(slots=True)
class Way:
    """A way to compute, with what it took: seconds of wall and processor time for each batch."""

    name: str
    run: Callable[[], Any]
    prepared: float
    difference: float
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take(self) -> None:
        """One batch."""
        began, used = time.perf_counter(), time.process_time()
        self.run()
        self.wall.append(time.perf_counter() - began)
        self.cpu.append(time.process_time() - used)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks.optimizations", description=__doc__)
    add = parser.add_argument
    add("--arch", default="resnet152", help="a classifier of torchvision (default: resnet152)")
    add("--batches", type=numbers, default=(8, 1), help="batch sizes (default: 8,1)")
    add("--reps", type=int, default=15, help="batches of each way (default: 15)")
    add("--threads", type=int, default=usable_cpus(), help="default: all cores")
    add("--keep-memory", action="store_true", help="with the memory settings of the handlers")
    add("--no-compile", action="store_true", help="leave torch.compile out, which takes a minute or more")
    add("--out", type=Path, help="write the figures to this JSON file")
    add("--dry-run", action="store_true", help="say what would be measured, and leave")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    options = parse(arguments)
    names = [name for name in WAYS if not (options.no_compile and name in COMPILED)]
    facts = machine() | {
        "network": f"{options.arch}, random weights, seed 0",
        "threads": str(options.threads),
        "memory": "kept between batches" if options.keep_memory else "as the C library does by itself",
        "measurements": f"{options.reps} batches of each way, interleaved",
    }
    print(heading(options.arch, facts))
    if options.dry_run:
        print("\n".join(names))
        return 0
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    document: dict[str, Any] = {"machine": facts, "figures": []}
    with own_cache():
        for batch in options.batches:
            rows = report(measure(options, names, batch), batch)
            document["figures"] += rows
    write_json(options.out, document)
    return 0


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """A cache for this run alone."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        os.environ["MODELSERVER_CACHE"] = folder
        yield


def measure(options: argparse.Namespace, names: Sequence[str], batch: int) -> list[Way]:
    """All ways of one batch size."""
    import torch  # noqa: PLC0415 - a dry run needs none

    from modelserver_handlers.calibration import calibration_batch  # noqa: PLC0415
    from modelserver_handlers.memory import keep_memory  # noqa: PLC0415
    from modelserver_handlers.zoo import random_network  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    if options.keep_memory:
        keep_memory()
    plain = random_network(options.arch, 0)
    pictures = calibration_batch(1, batch, SIDE)
    with torch.inference_mode():
        expected = plain(pictures)
        ways = [prepare(name, plain, pictures, expected) for name in names]
        for _ in range(options.reps):
            for way in ways:
                way.take()
    return ways


def prepare(name: str, plain: Any, pictures: Any, expected: Any) -> Way:
    """One way, run twice."""
    from modelserver_handlers.optimize import deviation  # noqa: PLC0415

    began = time.perf_counter()
    compute = computation(name, copy.deepcopy(plain), pictures)
    compute()
    prepared = time.perf_counter() - began
    return Way(name, compute, prepared, deviation(compute().float(), expected))


def computation(name: str, model: Any, pictures: Any) -> Callable[[], Any]:
    """What one batch takes in a way. ``model`` is a plain network of its own."""
    import torch  # noqa: PLC0415
    from torch.fx.experimental.optimization import fuse  # noqa: PLC0415

    from modelserver_handlers.compilation import compile_model  # noqa: PLC0415
    from modelserver_handlers.optimize import optimize  # noqa: PLC0415

    if "optimize" in name:
        precision = "bf16" if "bf16" in name else "fp32"
        if not optimize(model, pictures.shape[1:], precision, len(pictures)):
            raise RuntimeError("the network was not optimised")
        return lambda: model(pictures)
    if "folded" in name:
        model = fuse(model)
    if "channels_last" in name or "compiled" in name:
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.to(memory_format=torch.channels_last)
    if "bf16" in name:
        model, pictures = model.to(torch.bfloat16), pictures.to(torch.bfloat16)
    if "compiled" in name:
        model = compile_model(model, {"pt2": {"compile": {"enable": True}}})
    return lambda: model(pictures)


def report(ways: Sequence[Way], batch: int) -> list[dict[str, Any]]:
    """Print the table of one batch size; the same for JSON."""
    plain = ways[0]
    rows = [
        {
            "way": way.name,
            "batch": batch,
            "rate": batch / statistics.median(way.wall),
            "to_plain": statistics.median(a / b for a, b in zip(plain.wall, way.wall, strict=True)),
            "cpu_ms": statistics.median(way.cpu) * 1000 / batch,
            "cpu_to_plain": statistics.median(a / b for a, b in zip(plain.cpu, way.cpu, strict=True)),
            "difference": way.difference,
            "prepared_s": way.prepared,
        }
        for way in ways
    ]
    headers = [
        f"batch {batch}",
        "images/s",
        "to plain",
        "CPU ms/image",
        "CPU to plain",
        "difference",
        "ready in s",
    ]
    keys = ("rate", "to_plain", "cpu_ms", "cpu_to_plain")
    cells = [
        [
            str(row["way"]),
            *(number(row[key]) for key in keys),
            f"{row['difference']:.0e}",
            number(row["prepared_s"]),
        ]
        for row in rows
    ]
    print(table(headers, cells) + "\n")
    return rows


if __name__ == "__main__":
    run(main)
