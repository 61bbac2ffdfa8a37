"""``modelserver tune``: the command line and the output files."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePath
from urllib.parse import quote
from uuid import uuid4

from modelserver.engine.pools.variables import THREAD_VARIABLES
from modelserver.engine.resources import usable_cpus
from modelserver.errors import ConfigError
from modelserver.tools.archiver import ArchiverError
from modelserver.tools.commands import check_least, exit_status, read_inputs, termination_is_interruption
from modelserver.tools.tune.bench import Input, LocalBench
from modelserver.tools.tune.config_file import FIRST_LINE, config_text, dump, mapping
from modelserver.tools.tune.errors import SettingRefused, TuningError
from modelserver.tools.tune.goal import Goal, ModelSetting, parse_goal
from modelserver.tools.tune.machine import BUSY, machine_facts, others_percent
from modelserver.tools.tune.progress import progressing
from modelserver.tools.tune.report import curve_png, html_report, results_json
from modelserver.tools.tune.source import ModelSource, open_source
from modelserver.tools.tune.sweep import GAIN, SearchBounds
from modelserver.tools.tune.tuner import Tuner, TuningResult

# ``--precision int8``: the model with the inputs as its calibration set, used if it is faster.

FOLDER = "tuning-inputs"  # in the archive
ROWS = 8  # of the batches that are compared
_SECONDS = 4.0
_OURS = {"precision": "int8", "calibration": FOLDER}
# Files of these types would be read as whole calibration sets, while an input is one request.
_SETS = frozenset({".npy", ".json"})


def try_int8(
    source: ModelSource,
    inputs: Sequence[Input],
    folder: Path,
    make_bench: Callable[[ModelSource], LocalBench],
    threads: int | None = None,
) -> tuple[ModelSource, str]:
    """The model with ``precision: int8`` and ``inputs`` as its calibration set, if the handler finds it good
    enough and it is at least 3 % faster; otherwise ``source``. And in words why it is this one.

    ``folder`` is for its files. Raises TuningError if the model cannot be served.
    """
    other = with_calibration(source, inputs, folder)
    try:
        rate, precision = _measured(make_bench(other), threads)
    except SettingRefused as refused:
        return source, f"int8 is not used: {refused}"
    if precision.get("used") != "int8":
        return source, f"int8 is not used: {precision.get('why', 'the handler has no such setting')}"
    before, _ = _measured(make_bench(source), threads)
    compared = f"{rate:.4g} requests/s in batches of {ROWS}, without it {before:.4g}"
    if rate < GAIN * before:
        return source, f"int8 is not used, as it is not faster: {compared}"
    return other, f"int8 is used: {compared}; {precision['why']}"


def with_calibration(source: ModelSource, inputs: Sequence[Input], folder: Path) -> ModelSource:
    """The model with ``precision: int8`` and its inputs, written to ``folder``. Raises TuningError."""
    samples = folder / "samples"
    samples.mkdir(parents=True)
    more: dict[str, Path] = {}
    for number, each in enumerate(inputs):
        suffix = PurePath(each.name).suffix
        path = samples / f"{number:04}{'.body' if suffix in _SETS else suffix}"
        path.write_bytes(each.body)
        more[f"{FOLDER}/{path.name}"] = path
    config = folder / "model-config.yaml"
    config.write_text(int8_config(source.config_text), "utf-8")
    try:
        archive = source.pack(config, folder, more)
    except (ArchiverError, OSError) as error:
        raise TuningError(f"The archive with a calibration set could not be written: {error}") from error
    return replace(open_source(str(archive), None, folder), label=source.label)


def int8_config(original: str | None) -> str:
    """The configuration with our keys under ``handler``; its comments are kept if it had none there."""
    values = mapping(original)
    handler = values.get("handler")
    changed = values | {"handler": {**(handler if isinstance(handler, dict) else {}), **_OURS}}
    appended = f"{original or ''}\n{dump({'handler': _OURS})}"
    return appended if "handler" not in values and mapping(appended) == changed else dump(changed)


def _measured(bench: LocalBench, threads: int | None) -> tuple[float, dict[str, str]]:
    """Requests per second, and the precision that is used. Raises Refused, TuningError."""
    with closing(bench):
        bench.serve(ModelSetting(ROWS, threads=threads))
        figure = bench.closed(2 * ROWS, _SECONDS, _SECONDS / 4, 4 * _SECONDS)
        if figure.void:
            raise SettingRefused(figure.reason())
        return figure.rate, bench.description.get("precision") or {}


CONFIG, REPORT, RESULTS, PICTURE = "model-config.yaml", "report.html", "results.json", "curve.png"
_UNKNOWN_TYPE = "application/octet-stream"


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if the goal is met, 1 if not or on failure, 2 for a bad command line, 130 if interrupted."""
    options = build_parser().parse_args(arguments)
    return exit_status(
        lambda: _run(options),
        {ConfigError: 2, TuningError: 1},
        "Interrupted: the server was stopped, nothing was written.",
    )


def _run(options: argparse.Namespace) -> int:
    goal = parse_goal(options.goal)
    inputs = [
        Input(path.name, body, _checked_type(kind or _UNKNOWN_TYPE))
        for path, body, kind in read_inputs(options.input, options.content_type)
    ]
    check_least(options, 1, "time_budget", "clients", "max_batch_size", "max_workers", "threads")
    if options.model_store is not None and not options.model_store.is_dir():
        raise ConfigError(f"--model-store directory not found: {options.model_store}")
    if options.ts_config is not None and not options.ts_config.is_file():
        raise ConfigError(f"--ts-config file not found: {options.ts_config}")
    with termination_is_interruption(), tempfile.TemporaryDirectory(prefix="modelserver-tune-") as folder:
        return tune(options, goal, inputs, Path(folder))


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
    add("--clients", metavar="N", type=int, help="concurrent clients to tune for (default: for full batches)")
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


def _checked_type(kind: str) -> str:
    if not kind.isascii() or not kind.isprintable():
        raise ConfigError(f"--content-type={kind!r}: a content type such as image/jpeg is needed")
    return kind


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

        def make_bench(compared: ModelSource) -> LocalBench:
            own_folder = Path(tempfile.mkdtemp(prefix="compare-", dir=folder))
            return LocalBench(compared, inputs, own_folder, options.ts_config)

        source, outcome = try_int8(source, inputs, folder / "int8", make_bench, options.threads)
        print(f"  {outcome}")
        remarks.append(outcome)
    with (
        progressing() as listener,
        contextlib.closing(LocalBench(source, inputs, folder, options.ts_config)) as bench,
    ):
        listener.line(f"tuning {source.name} for {goal.text}, about {options.time_budget:g} s:")
        result = Tuner(bench, goal, bounds(options, goal), options.time_budget, listener).run()
        facts = machine_facts(bench.description, others)
        result.remarks += remarks
    choice = f"{result.choice.setting}: {goal.text_of(result.choice.figure)}"
    if not result.met:
        print(f"The goal {goal.text} was not met. The best that was reached: {choice}.")
    elif goal.kind == "limit":
        print(f"The goal {goal.text} is met by {choice}.")
    else:
        print(f"The best for {goal.text} is {choice}.")
    if result.unsteady:
        print(f"Warning: {result.unsteady}.")
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


def bounds(options: argparse.Namespace, goal: Goal) -> SearchBounds:
    """What may be tried. ``min-latency`` is measured with a single client by default."""
    cores = usable_cpus()
    threads_set = any(os.environ.get(name) for name in THREAD_VARIABLES)
    return SearchBounds(
        max_batch=options.max_batch_size,
        max_workers=options.max_workers or min(cores, 8),
        cores=cores,
        clients=options.clients or (1 if goal.kind == "latency" else None),
        threads_free=options.threads is None and not threads_set,
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
    out: Path, source: ModelSource, result: TuningResult, facts: Mapping[str, str], *, usable: bool = True
) -> list[Path]:
    """Writes the result files atomically, the configuration only if ``usable``; returns their paths."""
    config = config_text(source.config_text, result, facts)
    use = how_to_use(source, out) if usable else "--force writes it, and an archive with it."
    contents = {
        REPORT: html_report(source.label, result, facts, config, use).encode(),
        RESULTS: results_json(source.label, result, facts).encode(),
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


def how_to_use(source: ModelSource, out: Path) -> str:
    """The commands that serve the archive with the new configuration."""
    file = f"{source.name}.mar"
    return (
        f"  cp {shlex.quote(str(out / file))} MODEL_STORE\n"
        f"  curl -X POST {shlex.quote(f'localhost:8081/models?url={quote(file)}')}"
    )
