"""The command ``modelserver check``."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from modelserver.errors import ConfigError, ModelServerError
from modelserver.tools.commands import check_least, counted, exit_status
from modelserver.tools.doctor.answer_checks import TOLERANCE
from modelserver.tools.doctor.doctor import CALLS, LARGEST, CheckOptions, examine
from modelserver.tools.doctor.findings import CheckReport, Finding
from modelserver.tools.doctor.probing import SourceLine
from modelserver.tools.doctor.samples import read_samples
from modelserver.tools.serve.console import BOLD, DIM, GREEN, RED, YELLOW, Style, from_here
from modelserver.tools.serve.options import locate_source

# A chart for people, and as JSON.

_COLOURS: Final = {"error": RED, "warning": YELLOW, "advice": GREEN}
_WIDTH: Final = 100
_INDENT: Final = 10


def as_text(source: str, report: CheckReport, file: Path | None, style: Style) -> str:
    """The report; ``file`` is the script that is checked, if it is one."""
    lines = [f"{style(from_here(source), BOLD)}: {verdict(report)}", ""]
    for finding in report.findings:
        lines += [*_finding_lines(finding, file, style), ""]
    lines += [f"{style(f'{name:<{_INDENT - 1}}', DIM)} {text}" for name, text in _figures(report.figures)]
    lines += _list("checked", report.checked, style)
    reasons: dict[str, list[str]] = {}
    for what, why in report.left_out.items():
        reasons.setdefault(why, []).append(what)
    lines += _list("left out", [f"{', '.join(whats)} ({why})" for why, whats in reasons.items()], style)
    return "\n".join(lines)


def as_json(source: str, report: CheckReport, file: Path | None, *, ok: bool) -> dict[str, Any]:
    """The report as the flag ``--json`` prints it."""
    return {
        "source": source,
        "ok": ok,
        "errors": report.count("error"),
        "warnings": report.count("warning"),
        "findings": [
            {
                "id": finding.id,
                "level": finding.level,
                "seen": finding.seen,
                "why": finding.kind.why,
                "instead": finding.instead,
                "file": None if finding.place is None else display_path(finding.place, file),
                "line": None if finding.place is None else finding.place.line,
                "function": None if finding.place is None else finding.place.function or None,
            }
            for finding in report.findings
        ],
        "checked": report.checked,
        "not_checked": report.left_out,
        "figures": report.figures,
    }


def verdict(report: CheckReport) -> str:
    """Whether answers were checked, and how many findings of each level there are."""
    counts = ((report.count("error"), "error"), (report.count("warning"), "warning"))
    parts = [counted(count, word) for count, word in counts if count]
    if report.unanswered:
        parts.insert(0, f"no answer was checked ({report.unanswered})")
    return ", ".join(parts) or "nothing is wrong"


def display_path(place: SourceLine, file: Path | None) -> str:
    """A file of the model: of a script by its path from here, of an archive by its name there."""
    if file is None or file.suffix != ".py":
        return place.file
    original = file.parent / place.file
    return from_here(str(original if original.exists() else file))


def _finding_lines(finding: Finding, file: Path | None, style: Style) -> Iterator[str]:
    place = finding.place
    where = ""
    if place is not None:
        # Code without a name, such as <module>, is not shown as a function.
        inside = f", in {place.function}" if place.function[:1].isidentifier() else ""
        where = f"  {display_path(place, file)}:{place.line}{inside}"
    level = style(f"{finding.level:<{_INDENT - 1}}", _COLOURS[finding.level])
    yield f"{level} {style(finding.id, BOLD)}{where}"
    yield from _wrapped(finding.seen)
    for label, text in (("why", finding.kind.why), ("instead", finding.instead)):
        first, *rest = _wrapped(f"{label}: {text}")
        yield first.replace(f"{label}:", style(f"{label}:", DIM), 1)
        yield from rest


def _wrapped(text: str) -> list[str]:
    indent = " " * _INDENT
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)


def _list(name: str, items: Sequence[str], style: Style) -> list[str]:
    if not items:
        return []
    lines = textwrap.wrap("; ".join(items), _WIDTH - _INDENT, break_on_hyphens=False)
    labels = [f"{name:<{_INDENT - 1}}", *[" " * (_INDENT - 1)] * (len(lines) - 1)]
    return [f"{style(label, DIM)} {line}" for label, line in zip(labels, lines, strict=True)]


def _figures(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if load := figures.get("load"):
        packages = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in load["packages"].items())
        whole = f"imports {load['import_seconds']:.2g} s, initialize {load['initialize_seconds']:.2g} s"
        yield "load", f"{whole}{f' ({packages})' if packages else ''}"
    if cost := figures.get("cost"):
        costs = ", ".join(f"{size}: {ms:.3g} ms" for size, ms in cost["ms_by_batch"].items())
        yield "cost", f"{costs} by batch size"
    if memory := figures.get("memory"):
        seen = f"{memory['before_mb']:g} to {memory['after_mb']:g} MiB in {memory['calls']} calls"
        yield "memory", seen


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
