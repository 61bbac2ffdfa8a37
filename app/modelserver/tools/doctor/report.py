"""A chart for people, and as JSON."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from modelserver.tools.serve.console import BOLD, DIM, GREEN, RED, YELLOW, Style, from_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from modelserver.tools.doctor.findings import CheckReport, Finding
    from modelserver.tools.doctor.probing import SourceLine

_COLOURS: Final = {"error": RED, "warning": YELLOW, "advice": GREEN}
_WIDTH: Final = 100
_INDENT: Final = 10


def as_text(source: str, report: CheckReport, file: Path | None, style: Style) -> str:
    """The report; ``file`` is the script that is checked, if it is one."""
    lines = [f"{style(from_here(source), BOLD)}: {verdict(report)}", ""]
    for finding in report.findings:
        lines += [*_finding_lines(finding, file, style), ""]
    lines += [f"{style(name, DIM)} {text}" for name, text in _figures(report.figures)]
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
    parts = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count]
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
    width = _INDENT - 1
    if load := figures.get("load"):
        packages = ", ".join(f"{name} {seconds:.2g} s" for name, seconds in load["packages"].items())
        whole = f"imports {load['import_seconds']:.2g} s, initialize {load['initialize_seconds']:.2g} s"
        yield f"{'load':<{width}}", f"{whole}{f' ({packages})' if packages else ''}"
    if cost := figures.get("cost"):
        yield (
            f"{'cost':<{width}}",
            ", ".join(f"{size}: {ms:.3g} ms" for size, ms in cost["ms_by_batch"].items()) + " by batch size",
        )
    if memory := figures.get("memory"):
        seen = f"{memory['before_mb']:g} to {memory['after_mb']:g} MiB in {memory['calls']} calls"
        yield f"{'memory':<{width}}", seen
