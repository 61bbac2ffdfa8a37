"""What batching gains and what it costs: the same model one by one and in batches.

For ResNet-152 and for the small digit model that comes with the server, with clients enough for two batches.
Each measurement registers the model anew with its batch size: one worker has the machine to itself.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.archives import build_resnet, photograph
from benchmarks.load import Client, Load, chosen, run_load
from benchmarks.measure import Figure, Sample, figures, interleaved, of, ratio, sample
from benchmarks.options import ARCHS, common_parser, numbers, run, tell, tells_failures
from benchmarks.report import failure_lines, heading, machine, noise_lines, number, table, write_json
from benchmarks.servers import ROOT, ModelServer, model_server, sample_answer
from modelserver.engine.resources import usable_cpus

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

DIGITS = "digits"
DIGIT_ARCHIVE = ROOT / "model_store" / "mnist.mar"
DIGIT_PICTURE = ROOT / "examples" / "mnist" / "digit-2.png"
NAME = "model"
PATH = f"/predictions/{NAME}"


@dataclass(frozen=True, slots=True)
class Model:
    """What is served: an archive of the store, and the picture to send."""

    title: str
    archive: str
    picture: bytes
    content_type: str
    client: Client


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common_parser("benchmarks.batching", __doc__, duration=15.0)
    add = parser.add_argument
    default = ["resnet152", DIGITS]
    add(
        "--models", nargs="+", choices=(*ARCHS, DIGITS), default=default, help=f"default: {' '.join(default)}"
    )
    add("--batches", type=numbers, default=(1, 2, 4, 8, 16, 32), help="default: 1,2,4,8,16,32")
    add("--window-ms", type=int, help="wait this long for a batch; without it the policy is adaptive")
    add("--image", type=Path, help="the picture for the ResNet; without it one of about 110 kB is made")
    add("--threads", type=int, default=usable_cpus(), help="of the worker (default: all cores)")
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a figure is void or a process does not start."""
    options = parse(arguments)
    facts = machine() | {
        "models": ", ".join(options.models),
        "batches": ", ".join(map(str, options.batches)),
        "policy": "adaptive" if options.window_ms is None else f"window {options.window_ms} ms",
        "connections": "twice the batch size",
        "threads": str(options.threads),
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    print(heading("Batching", facts))
    if options.dry_run:
        print("\n".join(f"{model}, batch {batch}" for model in options.models for batch in options.batches))
        return 0
    samples = {model: measure(model, options) for model in options.models}
    summaries = {model: figures(taken) for model, taken in samples.items()}
    for model, summary in summaries.items():
        print_report(model, summary, samples[model], options.batches)
    documents = [
        {"model": model, "rows": rows(summary, samples[model], options.batches), "samples": samples[model]}
        for model, summary in summaries.items()
    ]
    write_json(options.out, {"machine": facts, "models": documents})
    return 1 if any(figure.void for summary in summaries.values() for figure in summary) else 0


def measure(name: str, options: argparse.Namespace) -> list[Sample]:
    """One model at every batch size, repeated."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        store = folder / "store"
        store.mkdir()
        model = prepare(name, store, options)
        server = stack.enter_context(model_server(store, folder / "server", threads=options.threads))
        takers: list[Callable[[int], Sample]] = [
            partial(take, server, model, batch, options) for batch in options.batches
        ]
        return interleaved(options.reps, takers, tell)


def prepare(name: str, store: Path, options: argparse.Namespace) -> Model:
    """Puts the archive into the store. Raises BenchmarkError."""
    if name == DIGITS:
        archive = Path(shutil.copy(DIGIT_ARCHIVE, store)).name
        # wrk costs the machine less where answers come by the thousand.
        return Model(name, archive, DIGIT_PICTURE.read_bytes(), "image/png", chosen(options.client))
    picture = options.image.read_bytes() if options.image else photograph()
    return Model(name, build_resnet(store, name), picture, "image/jpeg", "asyncio")


def take(
    server: ModelServer, model: Model, batch: int, options: argparse.Namespace, repetition: int
) -> Sample:
    """One measurement: register, warm up, load, unregister."""
    parameters: dict[str, str | int] = {"batch_size": batch}
    if options.window_ms is not None:
        parameters["max_batch_delay"] = options.window_ms
    load = Load(
        url=server.url(PATH),
        body=model.picture,
        content_type=model.content_type,
        connections=2 * batch,
        seconds=options.duration,
        settle=options.duration / 5,
    )
    with registered(server, model.archive, parameters):
        sample_answer(server, PATH, model.picture)
        run_load(Load(load.url, load.body, load.content_type, load.connections, options.warmup), model.client)
        return sample(server, load, f"{model.title}, batch {batch}", repetition, model.client)


@contextlib.contextmanager
def registered(server: ModelServer, archive: str, parameters: dict[str, str | int]) -> Iterator[None]:
    """The model is served as long as the block lasts."""
    server.register(archive, NAME, **parameters)
    try:
        yield
    finally:
        server.unregister(NAME)


def rows(
    summary: Sequence[Figure], samples: Sequence[Sample], batches: Sequence[int]
) -> list[dict[str, object]]:
    """The figures with their batch sizes and their ratios to the first batch size, for JSON."""
    first = summary[0]
    base = of(first.subject, first.connections)
    return [
        {"batch": batch, "figure": each, "gain": ratio(samples, of(each.subject, each.connections), base)}
        for batch, each in zip(batches, summary)  # noqa: B905 - as many figures as batches
    ]


def print_report(
    model: str, summary: Sequence[Figure], samples: Sequence[Sample], batches: Sequence[int]
) -> None:
    """A Markdown table on standard output."""
    headers = ["batch size", "connections", "images/s", "p50 ms", "p99 ms", f"to batch {batches[0]}"]
    first = summary[0]
    base = of(first.subject, first.connections)
    cells = [
        [
            str(batch),
            str(each.connections),
            *(number(value) for value in (each.rate, each.p50_ms, each.p99_ms)),
            number(ratio(samples, of(each.subject, each.connections), base)),
        ]
        for batch, each in zip(batches, summary)  # noqa: B905
    ]
    print(f"## {model}\n\n{table(headers, cells)}\n")
    remarks = [*failure_lines(summary), *noise_lines(summary)]
    if remarks:
        print("\n".join(remarks) + "\n")


if __name__ == "__main__":
    run(main)
