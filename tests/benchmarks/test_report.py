"""What benchmarks print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks.measure import Sample, figures
from benchmarks.report import (
    Mark,
    failure_lines,
    heading,
    machine,
    noise_lines,
    number,
    plain,
    table,
    write_json,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (99.94, "99.9"),
        (1.234, "1.23"),
        (0.0, "0.00"),
        (None, "void"),
        (float("nan"), "void"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    """Three digits that matter, and a word where there is no number."""
    assert number(value) == text


@pytest.mark.parametrize(
    ("mark", "reached"),
    [
        (Mark("a", 0.5, ">=", 0.5), True),
        (Mark("a", 0.49, ">=", 0.5), False),
        (Mark("a", 2.9, "<", 3.0), True),
        (Mark("a", 3.0, "<", 3.0), False),
        (Mark("a", None, "<", 3.0), False),
    ],
)
def test_marks_are_reached_or_not(mark: Mark, reached: bool) -> None:
    """A void value reaches no mark."""
    assert mark.reached is reached
    assert str(mark).startswith("reached: a" if reached else "NOT REACHED: a")


def test_tables_are_markdown() -> None:
    """Columns are aligned, numbers to the right."""
    lines = table(["name", "rate"], [["echo", "1"], ["batch 32", "1,000"]]).splitlines()

    assert lines == [
        "| name     |  rate |",
        "| -------- | ----: |",
        "| echo     |     1 |",
        "| batch 32 | 1,000 |",
    ]


def test_the_machine_is_named() -> None:
    """The heading tells processor, cores, kernel and versions."""
    facts = machine()

    assert {"cpu", "cores", "kernel", "Python", "torch", "uvicorn", "uvloop"} <= set(facts)
    assert all(facts.values())
    assert f"- cores: {facts['cores']}" in heading("Title", facts).splitlines()


def test_failures_and_noise_are_told() -> None:
    """Below the table stand the reasons of void figures, and what disturbed the others."""
    samples = [
        Sample("a", 8, 0, 1.0, failures={"status 503": 3}, other_cpus=0.0),
        Sample("b", 8, 0, 1.0, other_cpus=0.7),
    ]

    assert failure_lines(figures(samples)) == ["void: a at 8: status 503 x 3"]
    assert noise_lines(figures(samples)) == ["noise: b at 8: others used 0.70 processors"]


def test_the_document_is_json(tmp_path: Path) -> None:
    """Dataclasses become objects, marks bring their verdict, NaN becomes null."""
    path = tmp_path / "out.json"
    write_json(path, {"marks": [Mark("a", 1.0, ">=", 0.5)], "samples": [Sample("a", 1, 0, float("nan"))]})
    document = json.loads(path.read_text())

    assert document["marks"][0]["reached"] is True
    assert document["samples"][0]["rate"] is None
    assert plain((1, {"a": None})) == [1, {"a": None}]
