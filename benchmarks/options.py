"""The options that the programs share, and what they say while they measure."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from benchmarks.load import CLIENTS
from benchmarks.measure import Sample, figures
from benchmarks.report import Mark, failure_lines, heading, machine, noise_lines, number, write_json
from benchmarks.servers import BenchmarkError

ARCHS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
DRY_RUN = "say what would be measured, and leave"
OUT = "write the figures, the marks and every sample to this JSON file"

Options: TypeAlias = argparse.Namespace
# What a program measures: samples, a text of them, and marks.
Measured: TypeAlias = tuple[Sequence[Sample], str, Sequence[Mark]]
_T = TypeVar("_T")


def common_parser(
    program: str,
    description: str | None,
    *,
    duration: float,
    reps: int = 3,
    loads: bool = True,
    out: str = OUT,
    dry_run: str = DRY_RUN,
) -> argparse.ArgumentParser:
    """``--duration``, ``--out`` and ``--dry-run``; ``--reps`` unless that is 0; ``--warmup`` and ``--client``
    where the program ``loads`` with our clients.
    """
    parser = argparse.ArgumentParser(f"benchmarks {program}", description=description)
    add = parser.add_argument
    add("--duration", type=float, default=duration, help=f"seconds of a measurement (default: {duration:g})")
    add("--out", type=Path, help=out)
    add("--dry-run", action="store_true", help=dry_run)
    if reps:
        medians = f"repetitions, interleaved; figures are medians (default: {reps})"
        add("--reps", type=int, default=reps, help=medians)
    if loads:
        add("--warmup", type=float, default=2.0, help="seconds of load before anything counts (default: 2)")
        add("--client", choices=CLIENTS, default="auto", help="auto: wrk where it is installed")
    return parser


def perform(
    options: Options,
    title: str,
    facts: Mapping[str, str],
    plan: Sequence[object],
    measure: Callable[[], Measured],
    *,
    more: Mapping[str, object] | None = None,
) -> int:
    """The course of most programs: print the heading, measure, print text and marks, and write all of it.

    ``--dry-run`` prints the plan instead, if there is one. ``more`` is written, too. Returns 1 if a figure is
    void.
    """
    facts = machine() | dict(facts)
    print(heading(title, facts))
    if options.dry_run and plan:
        print("\n".join(map(str, plan)))
        return 0
    samples, text, marks = measure()
    summary = figures(samples)
    print(text)
    print("\n".join([*map(str, marks), *failure_lines(summary), *noise_lines(summary)]))
    document = {"machine": facts, "figures": summary, "marks": marks, "samples": samples, **(more or {})}
    write_json(options.out, document)
    return 1 if any(figure.void for figure in summary) else 0


def run(program: Callable[[], int]) -> None:
    """Leave with the program's status; SIGTERM ends it like Ctrl-C, so that no server is left behind."""
    end_by_sigterm()
    sys.exit(program())


def end_by_sigterm() -> None:
    """From now on."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def program(
    parse: Callable[[Sequence[str] | None], Options],
) -> Callable[[Callable[[Options], int]], Callable[..., int]]:
    """Decorator that makes a program of what it does with its options.

    SIGTERM ends it like Ctrl-C. What a server or a load fails with is printed, and the status is 1.
    """

    def decorate(work: Callable[[Options], int]) -> Callable[..., int]:
        def main(arguments: Sequence[str] | None = None) -> int:
            end_by_sigterm()
            try:
                return work(parse(arguments))
            except (BenchmarkError, RuntimeError) as error:
                print(error, file=sys.stderr)
                return 1

        return main

    return decorate


def listed(
    read: Callable[[str], _T], fits: Callable[[_T], bool], what: str
) -> Callable[[str], tuple[_T, ...]]:
    """A reader of ``a,b`` for argparse, of values that fit."""

    def values(text: str) -> tuple[_T, ...]:
        every = tuple(map(read, text.split(",")))
        if not all(map(fits, every)):
            raise argparse.ArgumentTypeError(f"{what} are needed")
        return every

    return values


numbers = listed(int, lambda each: each >= 1, "whole numbers of at least 1")


def names(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """A reader of names for argparse."""
    return listed(str, known.__contains__, f"names of {', '.join(sorted(known))}")


def tell(sample: Sample) -> None:
    """One line per measurement on standard error, for who waits."""
    failed = f" FAILURES {sample.failures}" if sample.failures else ""
    where = f"{sample.subject} at {sample.connections}, repetition {sample.repetition + 1}"
    say(f"{where}: {number(sample.rate)}/s{failed}")


def say(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)
