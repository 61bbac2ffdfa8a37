"""``modelserver tune``: the command line and the output files."""

from __future__ import annotations

import argparse
import contextlib
import mimetypes
import os
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from modelserver.archiver import ArchiverError
from modelserver.errors import ConfigError
from modelserver.resources import usable_cpus
from modelserver.tuning.bench import Input, LocalBench
from modelserver.tuning.config_file import FIRST_LINE, config_text
from modelserver.tuning.eight_bits import try_int8
from modelserver.tuning.errors import TuningError
from modelserver.tuning.goal import Goal, parse_goal
from modelserver.tuning.machine import BUSY, machine_facts, others_percent
from modelserver.tuning.own_server import THREAD_VARIABLES
from modelserver.tuning.progress import progressing
from modelserver.tuning.report import curve_png, html_report, results_json
from modelserver.tuning.source import Source, open_source
from modelserver.tuning.sweep import Bounds
from modelserver.tuning.tuner import Result, Tuner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

CONFIG, REPORT, RESULTS, PICTURE = "model-config.yaml", "report.html", "results.json", "curve.png"
_UNKNOWN_TYPE = "application/octet-stream"


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if the goal is met, 1 if not or on failure, 2 for a bad command line, 130 if interrupted."""
    options = build_parser().parse_args(arguments)
    try:
        goal = parse_goal(options.goal)
        inputs = [read_input(path, options.content_type) for path in files_of(options.input)]
        check_numbers(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with (
            termination_is_interruption(),
            tempfile.TemporaryDirectory(prefix="modelserver-tune-") as folder,
        ):
            return tune(options, goal, inputs, Path(folder))
    except TuningError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted: the server was stopped, nothing was written.", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver tune",
        description="Finds batch size, batch policy, workers and threads for a model by measuring on this "
        "machine, and writes them as model-config.yaml. It starts its own server.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a url as for registrations, or the path of an archive or folder")
    add(
        "--input",
        metavar="FILE",
        nargs="+",
        type=Path,
        required=True,
        help="request bodies, sent in turn; of a folder, its files",
    )
    add("--goal", required=True, help='"p99<=80ms" (or p50, p90), max-throughput or min-latency')
    add("--model-store", metavar="DIR", type=Path, help="directory of model archives")
    add("--content-type", metavar="TYPE", help="of the bodies (default: guessed from file names)")
    add("--out", metavar="DIR", type=Path, help="output directory (default: ./MODEL-tuning)")
    add("--time-budget", metavar="S", type=float, default=180.0, help="approximate seconds (default: 180)")
    add(
        "--clients",
        metavar="N",
        type=int,
        help="concurrent clients to tune for (default: for full batches)",
    )
    add("--max-batch-size", metavar="N", type=int, default=64, help="largest to try (default: 64)")
    add("--max-workers", metavar="N", type=int, help="most to try (default: one per core, at most 8)")
    add("--threads", metavar="N", type=int, help="per worker, instead of an equal share of cores")
    add(
        "--precision",
        choices=["int8"],
        help="try it with the inputs as the calibration set, and use it if it is faster",
    )
    add("--ts-config", metavar="FILE", type=Path, help="a config.properties with further settings")
    add(
        "--force",
        action="store_true",
        help="write the configuration even if it misses the goal; overwrite files",
    )
    return parser


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files, and those of folders in the order of their names. Raises ConfigError for an empty folder."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(f"--input={path}: the folder has no files")
        found += inside
    return found


def read_input(path: Path, content_type: str | None) -> Input:
    """A body with its content type. Raises ConfigError."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--input={path}: {error.strerror}") from error
    kind = content_type or mimetypes.guess_type(path.name)[0] or _UNKNOWN_TYPE
    if not kind.isascii() or not kind.isprintable():
        raise ConfigError(f"--content-type={kind!r}: a content type such as image/jpeg is needed")
    return Input(path.name, body, kind)


def check_numbers(options: argparse.Namespace) -> None:
    """Raises ConfigError for a number below 1, and for missing files."""
    for name in ("time_budget", "clients", "max_batch_size", "max_workers", "threads"):
        value = getattr(options, name)
        if value is not None and not value >= 1:
            raise ConfigError(f"--{name.replace('_', '-')}={value:g}: a number of at least 1 is needed")
    if options.model_store is not None and not options.model_store.is_dir():
        raise ConfigError(f"--model-store directory not found: {options.model_store}")
    if options.ts_config is not None and not options.ts_config.is_file():
        raise ConfigError(f"--ts-config file not found: {options.ts_config}")


def tune(options: argparse.Namespace, goal: Goal, inputs: Sequence[Input], folder: Path) -> int:
    """Measures and writes; returns the exit status. Raises TuningError."""
    source = open_source(options.model, options.model_store, folder)
    out = options.out or Path(f"{source.name}-tuning")
    check_out(out, force=options.force)
    others = others_percent()
    if others >= BUSY:
        print(f"Warning: other programs use {others:.0f} % of the CPUs, which affects the figures.")
    remarks: list[str] = []
    if options.precision is not None:
        print("comparing with int8:", flush=True)
        trial = try_int8(source, inputs, folder / "int8", comparing(options, inputs, folder), options.threads)
        print(f"  {trial.said}")
        source = trial.source
        remarks.append(trial.said)
    with (
        progressing() as listener,
        contextlib.closing(LocalBench(source, inputs, folder, options.ts_config)) as bench,
    ):
        listener.line(f"tuning {source.name} for {goal.text}, about {options.time_budget:g} s:")
        result = Tuner(bench, goal, bounds(options, goal), options.time_budget, listener).run()
        facts = machine_facts(bench.description, others)
        result.remarks += remarks
    shown = f"{result.choice.setting}: {goal.shown(result.choice.figure)}"
    if not result.met:
        print(f"The goal {goal.text} was not met. The best that was reached: {shown}.")
    elif goal.kind == "limit":
        print(f"The goal {goal.text} is met by {shown}.")
    else:
        print(f"The best for {goal.text} is {shown}.")
    usable = result.met or options.force
    for path in write_files(out, source, result, facts, usable=usable):
        print(f"wrote {path}")
    if not usable:
        print(f"No {CONFIG} was written; --force writes the best one.")
        return 1
    try:
        print(f"wrote {source.pack(out / CONFIG, out)}")
    except (ArchiverError, OSError) as error:
        raise TuningError(f"The archive with {out / CONFIG} could not be written: {error}") from error
    print(f"To use it:\n{how_to_use(source, out)}")
    return 0 if result.met else 1


def comparing(
    options: argparse.Namespace, inputs: Sequence[Input], folder: Path
) -> Callable[[Source], LocalBench]:
    """Makes benches with a server and a folder of their own."""
    return lambda source: LocalBench(
        source, inputs, Path(tempfile.mkdtemp(prefix="compare-", dir=folder)), options.ts_config
    )


def bounds(options: argparse.Namespace, goal: Goal) -> Bounds:
    """What may be tried. ``min-latency`` is measured with a single client by default."""
    cores = usable_cpus()
    said = any(os.environ.get(name) for name in THREAD_VARIABLES)
    return Bounds(
        max_batch=options.max_batch_size,
        max_workers=options.max_workers or min(cores, 8),
        cores=cores,
        clients=options.clients or (1 if goal.kind == "latency" else None),
        threads_free=options.threads is None and not said,
        threads=options.threads,
    )


def check_out(out: Path, *, force: bool) -> None:
    """Raises TuningError if a configuration not written by the tuner would be overwritten."""
    if out.exists() and not out.is_dir():
        raise TuningError(f"--out={out}: a directory is needed")
    config = out / CONFIG
    if force or not config.exists():
        return
    if not config.read_text("utf-8", "replace").startswith(FIRST_LINE):
        raise TuningError(f"{config} was not written by the tuner; --force overwrites it")


def write_files(
    out: Path, source: Source, result: Result, facts: Mapping[str, str], *, usable: bool = True
) -> list[Path]:
    """Writes the result files atomically, the configuration only if ``usable``; returns their paths."""
    config = config_text(source.config_text, result, facts)
    use = how_to_use(source, out) if usable else "--force writes it, and an archive with it."
    contents = {
        REPORT: html_report(source.asked, result, facts, config, use).encode(),
        RESULTS: results_json(source.asked, result, facts).encode(),
    }
    if usable:
        contents[CONFIG] = config.encode()
    picture = curve_png(result)
    if picture is not None:
        contents[PICTURE] = picture
    out.mkdir(parents=True, exist_ok=True)
    partial = {out / name: out / f".{uuid4().hex}.part" for name in contents}
    try:
        for path, part in partial.items():
            part.write_bytes(contents[path.name])
        for path, part in partial.items():
            part.replace(path)
    finally:
        for part in partial.values():
            part.unlink(missing_ok=True)
    return list(partial)


def how_to_use(source: Source, out: Path) -> str:
    """The commands that serve the archive with the new configuration."""
    file = f"{source.name}.mar"
    return (
        f"  cp {shlex.quote(str(out / file))} MODEL_STORE\n"
        f"  curl -X POST {shlex.quote(f'localhost:8081/models?url={quote(file)}')}"
    )


@contextlib.contextmanager
def termination_is_interruption() -> Iterator[None]:
    """Makes SIGTERM end the tuning as Ctrl-C does, so that the server is stopped."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not callable(signal.getsignal(signal.SIGINT)):
            raise KeyboardInterrupt  # as a shell's job in the background, it ignores that
        # A running event loop ends its work in good order then.
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
