"""The command ``modelserver check``."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.errors import ConfigError, ModelServerError
from modelserver.tools.commands import check_least, exit_status
from modelserver.tools.doctor.answer_checks import TOLERANCE
from modelserver.tools.doctor.doctor import CALLS, LARGEST, CheckOptions, examine
from modelserver.tools.doctor.report import as_json, as_text
from modelserver.tools.doctor.samples import read_samples
from modelserver.tools.serve.console import Style
from modelserver.tools.serve.options import locate_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def main(arguments: Sequence[str]) -> int:
    """Returns 0 if nothing is wrong, 1 for errors (--strict: for warnings too), 2 if it cannot check.

    3: nothing is wrong so far, but there was no input whose answer could be checked.
    """
    options = build_parser().parse_args(arguments)
    return exit_status(lambda: check(options), {ModelServerError: 2, ConfigError: 2})


def check(options: argparse.Namespace) -> int:
    """Checks and prints; returns the exit status. Raises ModelServerError, ConfigError."""
    check_least(options, 1, "batch_size")
    check_least(options, 0, "calls", "tolerance")
    _, file, _ = locate_source(options.source, options.model_file)
    wish = CheckOptions(
        options.source,
        options.model_file,
        read_samples(options.input, options.content_type),
        options.batch_size,
        options.tolerance,
        options.calls,
        {
            **({"ts_config": Path(options.ts_config)} if options.ts_config else {}),
            **({"trust_pickles": True} if options.trust else {}),
        },
    )
    with _quiet():
        report = examine(wish)
    failed = report.count("error") + (report.count("warning") if options.strict else 0)
    status = 1 if failed else 3 if report.unanswered else 0
    if options.json:
        print(json.dumps(as_json(options.source, report, file, ok=not status), indent=2, ensure_ascii=False))
    else:
        print(as_text(options.source, report, file, Style()))
    return status


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        "modelserver check",
        description="Loads a model in a worker, and reports what would cause problems: answers that "
        "change in batches, leaks, work that is done in every call. Exit status: 0 nothing is wrong, 1 "
        "errors, 2 it could not check, 3 it had no input whose answer could be checked.",
        epilog="SOURCE is what modelserver serve takes: handler.py, handler.py:NAME, an archive, its folder, "
        "a model file or a URL.",
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="what to check")
    add(
        "--input",
        metavar="FILE",
        nargs="+",
        type=Path,
        default=[],
        help="request bodies, better two than one; of a folder, its files (default: made, where it is known "
        "what the model takes)",
    )
    add("--content-type", metavar="TYPE", help="of the inputs (default: guessed from their names)")
    add("--json", action="store_true", help="print the report as JSON")
    add("--strict", action="store_true", help="exit with 1 for warnings too")
    add(
        "--batch-size",
        metavar="N",
        type=int,
        help=f"the largest batch (default: {LARGEST}, or the model's batchSize if that is larger)",
    )
    add(
        "--tolerance",
        metavar="PART",
        type=float,
        default=TOLERANCE,
        help=f"how far numbers may differ, as a part of an answer's largest (default: {TOLERANCE:g})",
    )
    add("--calls", metavar="N", type=int, default=CALLS, help=f"to watch memory for (default: {CALLS})")
    add("--model-file", metavar="FILE", help="weights for the script, its serializedFile")
    add("--ts-config", metavar="FILE", help="a config.properties with further settings")
    add("--trust", action="store_true", help="load a pickle (.joblib, .pkl), which can run any code then")
    return parser


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the model's lines and the server's out of the report."""
    logger = logging.getLogger("modelserver")
    handler, propagate = logging.NullHandler(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
