"""The best of what was measured."""

from __future__ import annotations

from tests.tools.tune.tune_samples import figure

from modelserver.tools.tune.choice import Point, best, nearest, ranked
from modelserver.tools.tune.figure import void
from modelserver.tools.tune.goal import parse_goal
from modelserver.tools.tune.setting import Setting

FAST = parse_goal("max-throughput")
LIMIT = parse_goal("p99<=50ms")


def test_the_highest_throughput_that_keeps_to_the_limit_wins() -> None:
    """More throughput with too much latency does not count, and neither does a void figure."""
    points = [
        Point(Setting(4), figure(rate=100, p99=30)),
        Point(Setting(8), figure(rate=150, p99=49)),
        Point(Setting(16), figure(rate=200, p99=51)),
        Point(Setting(32), void("status 503")),
    ]

    assert best(LIMIT, points) is points[1]
    assert ranked(LIMIT, points) == [points[1], points[0]]


def test_of_those_as_good_the_simplest_wins() -> None:
    """Below 5 %, fewer workers and smaller batches are preferred, and the server's own threads."""
    points = [
        Point(Setting(8, threads=2), figure(rate=104)),
        Point(Setting(8, workers=2), figure(rate=103)),
        Point(Setting(16), figure(rate=102)),
        Point(Setting(8, "window", 10), figure(rate=101)),
        Point(Setting(8), figure(rate=100)),
        Point(Setting(4), figure(rate=90)),
    ]

    assert [p.figure.rate for p in ranked(FAST, points)] == [100, 101, 102, 103, 104, 90]


def test_without_a_point_that_keeps_to_the_limit_there_is_no_best() -> None:
    """But there is one that came closest."""
    points = [
        Point(Setting(1), figure(p99=60)),
        Point(Setting(2), figure(p99=80)),
        Point(Setting(4), void("x")),
    ]

    assert best(LIMIT, points) is None
    assert nearest(LIMIT, points) is points[0]
    assert nearest(LIMIT, points[2:]) is None
