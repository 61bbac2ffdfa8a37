"""ResNet-152 in batches of 8: through the server, against the bare PyTorch loop in a process of its own.

The loop computes the same batches with as many threads, once with prepared tensors (``model``) and once with
all that a request needs (``decode``). Measurements are interleaved; the server idles while the loop works.
"""

from __future__ import annotations

import contextlib
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.archives import build_resnet, photograph
from benchmarks.eager_loop import EagerLoop, eager_loop
from benchmarks.load import Load, run_load
from benchmarks.measure import Figure, Sample, figures, interleaved, of, ratio, sample
from benchmarks.options import ARCHS, common_parser, numbers, run, tell, tells_failures
from benchmarks.report import Mark, failure_lines, heading, machine, noise_lines, number, table, write_json
from benchmarks.servers import ModelServer, model_server, sample_answer
from modelserver.engine.resources import usable_cpus

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

WINDOW_MS = 50
POLICIES: dict[str, dict[str, str | int]] = {
    f"window {WINDOW_MS} ms": {"max_batch_delay": WINDOW_MS},
    "adaptive": {"batch_policy": "adaptive"},
}
NAMES = {policy: f"resnet-{policy.partition(' ')[0]}" for policy in POLICIES}
LOOP_MODEL, LOOP_DECODE = "loop, model", "loop, decode"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common_parser("benchmarks.resnet152", __doc__, duration=15.0)
    add = parser.add_argument
    add("--arch", choices=ARCHS, default="resnet152", help="a smaller network, to try it out")
    add("--batch", type=int, default=8, help="default: 8")
    add("--connections", type=numbers, default=(8, 32), help="default: 8,32")
    add("--image", type=Path, help="the picture to send; without it one of about 110 kB is made")
    add(
        "--threads",
        type=int,
        default=usable_cpus(),
        help="of the worker and of the loop (default: all cores)",
    )
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a figure is void or a process does not start."""
    options = parse(arguments)
    picture = options.image.read_bytes() if options.image else photograph()
    facts = machine() | {
        "network": f"{options.arch}, random weights, seed 0, float32",
        "picture": f"{options.image or 'made'}, {len(picture):,} bytes",
        "batch": str(options.batch),
        "threads": str(options.threads),
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    print(heading(options.arch, facts))
    if options.dry_run:
        names = [f"{policy} at {connections}" for policy in POLICIES for connections in options.connections]
        print("\n".join([LOOP_MODEL, LOOP_DECODE, *names]))
        return 0
    samples = measure(options, picture)
    summary = figures(samples)
    marks = loop_marks(samples, options.connections)
    print_report(summary, samples, marks)
    document = {"machine": facts, "figures": summary, "ratios": ratios(samples, summary)}
    write_json(options.out, document | {"marks": marks, "samples": samples})
    return 1 if any(figure.void for figure in summary) else 0


def measure(options: argparse.Namespace, picture: bytes) -> list[Sample]:
    """The loop's two kinds of work, then the server with each policy and number of connections, repeated."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        image = folder / "picture.jpg"
        image.write_bytes(picture)
        archive = build_resnet(folder / "store", options.arch)
        server = stack.enter_context(
            model_server(folder / "store", folder / "server", threads=options.threads)
        )
        loop = stack.enter_context(
            eager_loop(folder / "store" / archive, options.arch, image, options.batch, options.threads)
        )
        for policy, parameters in POLICIES.items():
            server.register(archive, NAMES[policy], batch_size=options.batch, **parameters)
            sample_answer(server, path_of(policy), picture)
            run_load(load_of(server, policy, picture, max(options.connections), options.warmup), "asyncio")
        return interleaved(options.reps, takers(options, server, loop, picture), tell)


def takers(
    options: argparse.Namespace, server: ModelServer, loop: EagerLoop, picture: bytes
) -> list[Callable[[int], Sample]]:
    """What is measured in each repetition."""
    return [
        partial(loop.run, "model", options.duration),
        partial(loop.run, "decode", options.duration),
        *(
            partial(take, server, policy, load_of(server, policy, picture, connections, options.duration))
            for policy in POLICIES
            for connections in options.connections
        ),
    ]


def path_of(policy: str) -> str:
    """Where the model with a policy is served."""
    return f"/predictions/{NAMES[policy]}"


def load_of(server: ModelServer, policy: str, picture: bytes, connections: int, seconds: float) -> Load:
    """Pictures for the model with a policy; batches have a fifth more time to fall into step first."""
    url = server.url(path_of(policy))
    return Load(url, picture, "image/jpeg", connections, seconds, settle=seconds / 5)


def take(server: ModelServer, policy: str, load: Load, repetition: int) -> Sample:
    """One measurement of the server, by our own client: it counts whole batches, as the loop does."""
    return sample(server, load, policy, repetition, "asyncio")


def to_loop(samples: Sequence[Sample], figure: Figure, loop: str) -> float | None:
    """The ratio of a figure to one of the loop's, None if void."""
    return ratio(samples, of(figure.subject, figure.connections), of(loop, 0))


def ratios(samples: Sequence[Sample], summary: Sequence[Figure]) -> list[dict[str, object]]:
    """All ratios to the loop, for JSON."""
    return [
        {
            "subject": each.subject,
            "connections": each.connections,
            "to_loop_model": to_loop(samples, each, LOOP_MODEL),
            "to_loop_decode": to_loop(samples, each, LOOP_DECODE),
        }
        for each in summary
        if each.connections
    ]


def loop_marks(samples: Sequence[Sample], connections: Sequence[int]) -> list[Mark]:
    """The server should be as fast as the loop that does the same work."""
    return [
        Mark(
            f"{policy} at {each} connections / PyTorch loop with decoding",
            ratio(samples, of(policy, each), of(LOOP_DECODE, 0)),
            ">=",
            0.95,
        )
        for policy in POLICIES
        for each in connections
    ]


def print_report(summary: Sequence[Figure], samples: Sequence[Sample], marks: Sequence[Mark]) -> None:
    """Table and marks on standard output."""
    headers = ["subject", "connections", "images/s", "p50 ms", "p99 ms", "to loop, model", "to loop, decode"]
    rows = []
    for each in summary:
        against = [number(to_loop(samples, each, loop)) for loop in (LOOP_MODEL, LOOP_DECODE)]
        if each.connections:
            seen = [
                str(each.connections),
                *(number(value) for value in (each.rate, each.p50_ms, each.p99_ms)),
            ]
        else:
            seen = ["", number(each.rate), "", ""]
        rows.append([each.subject, *seen, *against])
    print(table(headers, rows))
    print("\n" + "\n".join([*map(str, marks), *failure_lines(summary), *noise_lines(summary)]))


if __name__ == "__main__":
    run(main)
