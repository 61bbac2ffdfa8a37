"""What a benchmark prints and writes: the machine, Markdown tables, marks reached or not, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from benchmarks.measure import Figure
from modelserver.engine.resources import usable_cpus
from modelserver.tools.tune.machine import cpu_model

VOID = "void"
_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<": operator.lt,
    "<=": operator.le,
}
_PACKAGES = ("modelserver", "torch", "torchvision", "uvicorn", "uvloop", "httptools")


@dataclass(frozen=True, slots=True)
class Mark:
    """A value that should keep to a target; None never does, and ``absent`` says what it is then."""

    what: str
    value: float | None
    relation: Literal[">=", ">", "<", "<="]
    target: float
    unit: str = ""
    absent: str = VOID

    @property
    def reached(self) -> bool:
        """Whether the value keeps to the target."""
        if self.value is None:
            return False
        return _RELATIONS[self.relation](self.value, self.target)

    def __str__(self) -> str:
        word = "reached" if self.reached else "NOT REACHED"
        value = self.absent if self.value is None else f"{number(self.value)}{self.unit}"
        return f"{word}: {self.what} {self.relation} {self.target:g}{self.unit}: {value}"


def machine() -> dict[str, str]:
    """What the figures depend on besides the code."""
    facts = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": str(usable_cpus()),
        "kernel": f"{platform.system()} {platform.release()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "Python": platform.python_version(),
    }
    return facts | {name: installed(name) for name in _PACKAGES}


def installed(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def heading(title: str, facts: Mapping[str, str]) -> str:
    """The title and the machine, a line each."""
    return "\n".join([f"# {title}", "", *(f"- {name}: {fact}" for name, fact in facts.items()), ""])


def number(value: float | None) -> str:
    """For reading: three digits that matter, thousands with commas; None is void."""
    if value is None or math.isnan(value):
        return VOID
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (headers, rule, *rows))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"| {' | '.join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])])} |"


def failure_lines(figures: Sequence[Figure]) -> list[str]:
    """Why figures are void."""
    return [
        f"void: {figure.subject} at {figure.connections}: "
        + ", ".join(f"{reason} x {count}" for reason, count in figure.failures.items())
        for figure in figures
        if figure.void
    ]


def noise_lines(figures: Sequence[Figure]) -> list[str]:
    """Figures taken while something else computed on the machine."""
    return [
        f"noise: {figure.subject} at {figure.connections}: others used {figure.other_cpus:.2f} processors"
        for figure in figures
        if figure.other_cpus is not None and figure.other_cpus > 0.1
    ]


def plain(value: object) -> object:
    """What JSON can say: dataclasses as objects, marks with their verdict, NaN as null."""
    if isinstance(value, Mark):
        return {**dataclasses.asdict(value), "reached": value.reached}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def write_json(path: Path | None, document: Mapping[str, object]) -> None:
    """Write the document, if a path was asked for."""
    if path is not None:
        path.write_text(json.dumps(plain(document), indent=1) + "\n", "utf-8")
        print(f"wrote {path}")
