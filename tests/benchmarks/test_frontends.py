"""What several front ends take off the server process."""

from __future__ import annotations

from benchmarks.frontends import Case, Cost, main, report


def cost(processes: int, repetition: int, server_us: float) -> Cost:
    return Cost(processes, str(Case(32, 64)), repetition, 1000.0, server_us, 30.0, {})


def test_report() -> None:
    """Figures are medians, and the ratio is that of the same repetition to one process."""
    costs = [
        cost(1, 0, 40.0),
        cost(2, 0, 20.0),
        cost(1, 1, 80.0),
        cost(2, 1, 40.0),
        cost(1, 2, 10.0),
        cost(2, 2, 9.0),
    ]
    lines = report(costs).splitlines()

    assert len(lines) == 4
    assert [cell.strip() for cell in lines[2].split("|")[1:4]] == [
        "batch 32, 64 B, 1 process",
        "40.0",
        "1.00",
    ]
    assert [cell.strip() for cell in lines[3].split("|")[1:4]] == [
        "batch 32, 64 B, 2 processes",
        "20.0",
        "0.50",
    ]


def test_rehearsal() -> None:
    """One process is always among those that are measured."""
    assert main(["--dry-run", "--processes", "4", "--bodies", "10"]) == 0
