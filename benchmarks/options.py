"""The options that the programs share, and what they say while they measure."""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load import CLIENTS
from benchmarks.measure import figures
from benchmarks.report import failure_lines, heading, machine, noise_lines, number, write_json
from benchmarks.servers import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.measure import Sample
    from benchmarks.report import Mark

ARCHS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


DRY_RUN = "say what would be measured, and leave"
OUT = "write the figures, the marks and every sample to this JSON file"


def common_parser(
    program: str, description: str | None, *, duration: float, out: str = OUT, dry_run: str = DRY_RUN
) -> argparse.ArgumentParser:
    """``--duration``, ``--reps``, ``--warmup``, ``--client``; ``--out`` and ``--dry-run`` as told."""
    parser = argparse.ArgumentParser(program, description=description)
    add = parser.add_argument
    add("--duration", type=float, default=duration, help=f"seconds of a measurement (default: {duration:g})")
    add("--reps", type=int, default=3, help="repetitions, interleaved; figures are medians (default: 3)")
    add("--warmup", type=float, default=2.0, help="seconds of load before anything counts (default: 2)")
    add("--client", choices=CLIENTS, default="auto", help="auto: wrk where it is installed")
    add("--out", type=Path, help=out)
    add("--dry-run", action="store_true", help=dry_run)
    return parser


def perform(
    options: argparse.Namespace,
    title: str,
    facts: Mapping[str, str],
    plan: Sequence[object],
    measure: Callable[[], tuple[Sequence[Sample], str, Sequence[Mark]]],
) -> int:
    """The course of most programs: print the heading, measure, print text and marks, and write all of it.

    ``--dry-run`` prints the plan instead. Returns 1 if a figure is void.
    """
    facts = machine() | dict(facts)
    print(heading(title, facts))
    if options.dry_run:
        print("\n".join(map(str, plan)))
        return 0
    samples, text, marks = measure()
    summary = figures(samples)
    print(text)
    print("\n".join([*map(str, marks), *failure_lines(summary), *noise_lines(summary)]))
    document = {"machine": facts, "figures": summary, "marks": marks, "samples": samples}
    write_json(options.out, document)
    return 1 if any(figure.void for figure in summary) else 0


def run(program: Callable[[], int]) -> None:
    """Leave with the program's status; SIGTERM ends it like Ctrl-C, so that no server is left behind."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(program())


def tells_failures(main: Callable[..., int]) -> Callable[..., int]:
    """Decorator of programs: what a server or a load fails with is printed, and the status is 1."""

    @functools.wraps(main)
    def telling(arguments: Sequence[str] | None = None) -> int:
        try:
            return main(arguments)
        except (BenchmarkError, RuntimeError) as error:
            print(error, file=sys.stderr)
            return 1

    return telling


def numbers(text: str) -> tuple[int, ...]:
    """``1,8,32`` for argparse; each at least 1."""
    values = tuple(int(part) for part in text.split(","))
    if any(value < 1 for value in values):
        raise argparse.ArgumentTypeError("whole numbers of at least 1 are needed")
    return values


def tell(sample: Sample) -> None:
    """One line per measurement on standard error, for who waits."""
    failed = f" FAILURES {sample.failures}" if sample.failures else ""
    where = f"{sample.subject} at {sample.connections}, repetition {sample.repetition + 1}"
    say(f"{where}: {number(sample.rate)}/s{failed}")


def say(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)
