"""What a request costs as things grow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks import growth
from benchmarks.growth import (
    ECHO,
    OURS,
    Curve,
    Point,
    cost_ratio,
    curves,
    flat_mark,
    label,
    mark,
    queue_size,
)
from benchmarks.measure import Sample

if TYPE_CHECKING:
    from pathlib import Path

ONE, TEN = Point("models", 1, 1, 64, 32), Point("models", 10, 10, 64, 32)
CURVE = Curve("models", (ONE, TEN))


def taken(
    point: Point, cpu_us: float | None, repetition: int = 0, whose: str = OURS, **failures: int
) -> Sample:
    return Sample(label(point, whose), point.connections, repetition, 1.0, cpu_us=cpu_us, failures=failures)


def test_one_thing_grows_at_a_time() -> None:
    """Each curve varies one number and holds the others at their smallest."""
    options = growth.parse(["--models", "1,5", "--bodies", "10,20", "--connections", "4,8"])
    models, bodies, connections = (curve.points for curve in curves(options))

    assert [(p.models, p.body, p.connections) for p in models] == [(1, 10, 32), (5, 10, 32)]
    assert [(p.models, p.body, p.connections) for p in bodies] == [(1, 10, 32), (1, 20, 32)]
    assert [(p.models, p.body, p.connections) for p in connections] == [(1, 10, 4), (1, 10, 8)]


def test_a_curve_has_more_than_one_point() -> None:
    """What does not grow is not measured."""
    options = growth.parse(["--models", "1", "--bodies", "10", "--connections", "4,8"])

    assert [curve.title for curve in curves(options)] == ["connections"]


def test_every_connection_finds_room_in_the_queue() -> None:
    """A load of 1024 connections is not refused by the queue."""
    assert queue_size(growth.parse([])) == 2048
    assert queue_size(growth.parse(["--connections", "8"])) == 1000


def test_cost_is_compared_within_repetitions() -> None:
    """The median of the ratios; a failure voids it."""
    samples = [taken(ONE, 10), taken(TEN, 11), taken(ONE, 20, 1), taken(TEN, 24, 1)]

    assert cost_ratio(samples, TEN, ONE) == pytest.approx(1.15)
    assert cost_ratio([*samples, taken(ONE, 1, 2), taken(TEN, 1, 2, read=1)], TEN, ONE) is None
    assert cost_ratio([taken(ONE, 10)], TEN, ONE) is None


@pytest.mark.parametrize(("cost", "reached"), [(11.4, True), (11.6, False), (None, False)])
def test_the_dearest_point_makes_the_mark(cost: float | None, reached: bool) -> None:
    """At most 15 % above the first; nothing known reaches nothing."""
    mark = flat_mark(CURVE, [taken(ONE, 10), taken(TEN, cost)])

    assert mark.reached is reached
    assert "1 to 10 models" in str(mark)


@pytest.mark.parametrize(("echo", "reached"), [(26.0, True), (24.0, False), (20.0, False)])
def test_large_bodies_cost_their_copies(echo: float, reached: bool) -> None:
    """At most four times what the echo, which copies once, has to pay more for them."""
    small, large = Point("bytes", 10, 1, 10, 32), Point("bytes", 999, 1, 999, 32)
    ours = [taken(small, 10), taken(large, 30)]
    theirs = [taken(small, 20, whose=ECHO), taken(large, echo, whose=ECHO)]

    assert mark(Curve("bytes", (small, large), beside_echo=True), [*ours, *theirs]).reached is reached


def test_a_dry_run_lists_the_points(capsys: pytest.CaptureFixture[str]) -> None:
    """No server is started."""
    assert growth.main(["--dry-run"]) == 0
    assert "models: 1, 10, 100" in capsys.readouterr().out


@pytest.mark.slow
def test_growth_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two models and two body sizes make two curves, with costs, marks and a file."""
    short = ["--duration", "0.2", "--reps", "1", "--warmup", "0.1", "--client", "asyncio"]
    more = ["--models", "1,2", "--bodies", "100,1000", "--connections", "4", "--out", str(tmp_path)]
    status = growth.main([*short, *more])
    said = capsys.readouterr().out
    document = json.loads((tmp_path / "growth.json").read_text())

    assert status == 0, said
    assert set(document["curves"]) == {"models", "bytes"}
    assert all(point["cpu_us"] > 0 for curve in document["curves"].values() for point in curve)
    assert len(document["marks"]) == 2
    assert "| models |" in said
