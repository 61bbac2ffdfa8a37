"""The ways to compute a network on a processor, side by side in one process.

Each way runs one batch in turn, again and again: what else the machine does meets all of them. Figures are
medians: pictures per second, their ratio to the plain network within each turn, the same of processor time,
how far the outputs are from the plain network's, as a part of the largest one, and the arithmetic per second.

The yardstick runs in turn with them: one large matrix product, computed as a convolution by the library that
computes the networks, which is about as much arithmetic as it gets out of the machine. What a way reaches of
it says what is left to gain without doing less arithmetic; int8 is compared to float32's.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.options import numbers, run
from benchmarks.report import heading, machine, number, table, write_json
from modelserver.engine.resources import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SIDE = 224
# Rows and columns of the yardstick's matrices, and its multiplications and additions in 10^9.
PRODUCT = 2048
PRODUCT_OPERATIONS = 2 * PRODUCT**3 / 1e9
PLAIN = "plain"
COMPILED = ("compiled, frozen", "compiled, frozen, bf16")
INT8 = "precision: int8"
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
    INT8,
)
# Rows of the calibration set for int8.
CALIBRATION = 16


@dataclass(slots=True)
class Way:
    """A way to compute, with what it took: seconds of wall and processor time for each batch."""

    name: str
    run: Callable[[], Any]
    prepared: float
    difference: float
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def bf16(self) -> bool:
        """Whether it computes in bfloat16."""
        return "bf16" in self.name

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
            document["figures"] += report(*measure(options, names, batch), batch)
    write_json(options.out, document)
    return 0


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """A cache for this run alone."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        os.environ["MODELSERVER_CACHE"] = folder
        yield


def measure(
    options: argparse.Namespace, names: Sequence[str], batch: int
) -> tuple[list[Way], list[Way], float]:
    """All ways of one batch size, the yardsticks, and the operations of a batch, in 10^9."""
    import torch  # noqa: PLC0415 - a dry run needs none

    from modelserver_handlers.networks.calibration import calibration_batch  # noqa: PLC0415
    from modelserver_handlers.networks.device import keep_memory  # noqa: PLC0415
    from modelserver_handlers.zoo import random_network  # noqa: PLC0415

    torch.set_num_threads(options.threads)
    if options.keep_memory:
        keep_memory()
    plain = random_network(options.arch, 0)
    pictures = calibration_batch(1, batch, SIDE)
    with torch.inference_mode():
        expected = plain(pictures)
        operations = count_operations(plain, pictures)
        prepared = [prepare(name, plain, pictures, expected) for name in possible(names)]
        ways = [way for way in prepared if way is not None]
        yardsticks = [matrix_product(torch.float32)]
        if any(way.bf16 for way in ways):
            yardsticks.append(matrix_product(torch.bfloat16))
        for _ in range(options.reps):
            for way in (*ways, *yardsticks):
                way.take()
    return ways, yardsticks, operations


def possible(names: Sequence[str]) -> list[str]:
    """The ways that this processor has instructions for."""
    import torch  # noqa: PLC0415

    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return [name for name in names if has_bf16 or "bf16" not in name]


def count_operations(model: Any, pictures: Any) -> float:
    """Multiplications and additions of one batch, in 10^9; those of convolutions and matrix products."""
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    with FlopCounterMode(display=False) as counter:
        model(pictures)
    return float(counter.get_total_flops()) / 1e9


def matrix_product(dtype: Any) -> Way:
    """The yardstick for ways that compute in this type."""
    import torch  # noqa: PLC0415

    # A convolution of one pixel: torch.mm has another library for float32, slower on some processors.
    layer = torch.nn.Conv2d(PRODUCT, PRODUCT, 1, bias=False, dtype=dtype)
    layer = layer.to(memory_format=torch.channels_last)
    pixels = torch.randn(1, PRODUCT, PRODUCT // 32, 32, dtype=dtype).to(memory_format=torch.channels_last)
    name = f"matrix product, {'bf16' if dtype == torch.bfloat16 else 'float32'}"
    way = Way(name, lambda: layer(pixels), 0.0, 0.0)
    way.run()
    return way


def prepare(name: str, plain: Any, pictures: Any, expected: Any) -> Way | None:
    """One way, run twice; None if it is not for this network."""
    from modelserver_handlers.networks.optimize import deviation  # noqa: PLC0415

    began = time.perf_counter()
    compute = computation(name, copy.deepcopy(plain), pictures)
    if compute is None:
        print(f"Left out, as the network cannot be computed so: {name}")
        return None
    compute()
    prepared = time.perf_counter() - began
    return Way(name, compute, prepared, deviation(compute().float(), expected))


def computation(name: str, model: Any, pictures: Any) -> Callable[[], Any] | None:
    """What one batch takes in a way, None if there is none. ``model`` is a plain network of its own."""
    import torch  # noqa: PLC0415
    from torch.fx.experimental.optimization import fuse  # noqa: PLC0415

    from modelserver_handlers.networks.compilation import compile_model  # noqa: PLC0415
    from modelserver_handlers.networks.optimize import optimize  # noqa: PLC0415

    if "optimize" in name:
        precision = "bf16" if "bf16" in name else "fp32"
        if not optimize(model, pictures.shape[1:], precision, len(pictures)):
            return None
        return lambda: model(pictures)
    if name == INT8:
        quantise_randomly(model, len(pictures))
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


def quantise_randomly(model: Any, batch: int) -> None:
    """In 8 bits, whether or not the first class stays: random weights have no sensible classes."""
    from modelserver_handlers.networks.calibration import calibration_batch  # noqa: PLC0415
    from modelserver_handlers.networks.int8.quantisation import quantise  # noqa: PLC0415

    quantise(model, calibration_batch(2, CALIBRATION, SIDE), batch, agreement=0.0)


def report(
    ways: Sequence[Way], yardsticks: Sequence[Way], operations: float, batch: int
) -> list[dict[str, Any]]:
    """Print the table of one batch size; the same for JSON. ``operations`` of a batch in 10^9."""
    plain = ways[0]
    rows = [
        {
            "way": way.name,
            "batch": batch,
            "rate": batch / statistics.median(way.wall),
            "to_plain": _ratio(plain.wall, way.wall),
            "cpu_ms": statistics.median(way.cpu) * 1000 / batch,
            "cpu_to_plain": _ratio(plain.cpu, way.cpu),
            "gflops": operations / statistics.median(way.wall),
            "to_matrix_product": _ratio(yardsticks[way.bf16].wall, way.wall)
            * operations
            / PRODUCT_OPERATIONS,
            "difference": way.difference,
            "prepared_s": way.prepared,
        }
        for way in ways
    ]
    headers = [f"batch {batch}", *_COLUMNS.values(), "difference", "ready in s"]
    cells = [
        [
            str(row["way"]),
            *(number(row[key]) for key in _COLUMNS),
            f"{row['difference']:.0e}",
            number(row["prepared_s"]),
        ]
        for row in rows
    ]
    print(table(headers, cells) + "\n")
    for way in yardsticks:
        print(f"{way.name}: {number(PRODUCT_OPERATIONS / statistics.median(way.wall))} GFLOP/s")
    print()
    return rows


_COLUMNS = {
    "rate": "images/s",
    "to_plain": "to plain",
    "cpu_ms": "CPU ms/image",
    "cpu_to_plain": "CPU to plain",
    "gflops": "GFLOP/s",
    "to_matrix_product": "to matrix product",
}


def _ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """The median of the ratios within each turn."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    run(main)
