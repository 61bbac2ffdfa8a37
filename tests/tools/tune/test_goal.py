import pytest
from tests.tools.tune.tune_samples import figure

from modelserver.errors import ConfigError
from modelserver.tools.tune.figure import void
from modelserver.tools.tune.goal import ALLOWED, ModelSetting, Point, best, nearest, parse_goal, ranked


@pytest.mark.parametrize(
    ("text", "percentile", "limit_ms"),
    [("p99<=80ms", "p99", 80.0), (" P90 <= 1.5 s ", "p90", 1500.0), ("p50<=0.5ms", "p50", 0.5)],
)
def test_limits_have_a_percentile_and_a_time(text, percentile, limit_ms):
    goal = parse_goal(text)

    assert (goal.kind, goal.percentile, goal.limit_ms) == ("limit", percentile, limit_ms)
    assert parse_goal("max-throughput").kind == "throughput"
    assert parse_goal("min-latency").kind == "latency"


_MALFORMED = "p95<=80ms p99<80ms p99<=80 p99<=0ms p99<=-1ms p99<=ms fast p99<=1e3ms"


@pytest.mark.parametrize("text", ["", *_MALFORMED.split(), "p99\n<=\n80"])
def test_malformed_goals_are_refused_in_one_line(text):
    with pytest.raises(ConfigError) as caught:
        parse_goal(text)

    assert str(caught.value) == f"--goal={' '.join(text.split())}: {ALLOWED}"


def test_a_limit_holds_up_to_itself_and_then_the_goal_decides():
    goal = parse_goal("p90<=15ms")

    assert goal.met(figure(p90=15.0, p99=500.0))
    assert not goal.met(figure(p90=15.1))
    assert goal.worth(figure(rate=200.0)) > goal.worth(figure(rate=100.0))
    goal = parse_goal("min-latency")
    assert goal.worth(figure(rate=1.0, p50=5.0)) > goal.worth(figure(rate=100.0, p50=6.0))


@pytest.mark.parametrize("text", ["p99<=80ms", "max-throughput", "min-latency"])
def test_a_void_figure_never_meets_a_goal(text):
    assert not parse_goal(text).met(void("status 503"))
    assert parse_goal(text).worth(void("status 503")) == 0.0


FAST = parse_goal("max-throughput")
LIMIT = parse_goal("p99<=50ms")


def test_the_highest_throughput_that_keeps_to_the_limit_wins():
    points = [
        Point(ModelSetting(4), figure(rate=100, p99=30)),
        Point(ModelSetting(8), figure(rate=150, p99=49)),
        Point(ModelSetting(16), figure(rate=200, p99=51)),
        Point(ModelSetting(32), void("status 503")),
    ]

    assert best(LIMIT, points) is points[1]
    assert ranked(LIMIT, points) == [points[1], points[0]]


def test_of_those_as_good_the_simplest_wins():
    """Below 5 %, fewer workers and smaller batches are preferred, and the server's own threads."""
    points = [
        Point(ModelSetting(8, threads=2), figure(rate=104)),
        Point(ModelSetting(8, workers=2), figure(rate=103)),
        Point(ModelSetting(16), figure(rate=102)),
        Point(ModelSetting(8, "window", 10), figure(rate=101)),
        Point(ModelSetting(8), figure(rate=100)),
        Point(ModelSetting(4), figure(rate=90)),
    ]

    assert [p.figure.rate for p in ranked(FAST, points)] == [100, 101, 102, 103, 104, 90]


def test_without_a_point_that_keeps_to_the_limit_there_is_no_best():
    points = [
        Point(ModelSetting(1), figure(p99=60)),
        Point(ModelSetting(2), figure(p99=80)),
        Point(ModelSetting(4), void("x")),
    ]

    assert best(LIMIT, points) is None
    assert nearest(LIMIT, points) is points[0]
    assert nearest(LIMIT, points[2:]) is None
