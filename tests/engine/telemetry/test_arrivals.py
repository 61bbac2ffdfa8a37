"""What came to a version, and how long that is remembered."""

import sys

import pytest

from modelserver.engine.telemetry.arrivals import DAY, Arrivals
from modelserver.engine.telemetry.metrics import ServerMetrics


def metrics(version="1.0"):
    return ServerMetrics(hostname="h").model("m", version)


def serve(counted, requests=1, seconds=0.01):
    for _ in range(requests):
        counted.requests.answered(seconds, 0.001, False)
        counted.batches.waited(0.001)
    counted.batches.finished(requests, requests, 8, "idle", seconds - 0.002, (0.0, 0.0, 0.0))


def total(intervals, field):
    return float(sum(getattr(each, field) for each in intervals))


def test_requests_are_counted_with_what_they_cost():
    counted, history = metrics(), Arrivals(10.0)
    serve(counted, 3)
    history.look(11.0, counted, 2)
    counted.requests.rejected("queue_full")
    result = history.measured(12.0, counted, 2)

    assert [tuple(map(float, each)) for each in result.intervals] == [
        pytest.approx((1, 3, 0, 1, 3, 0.008, 2)),
        pytest.approx((1, 0, 1, 0, 0, 0, 2)),
    ]
    assert sum(result.latencies) == 3
    assert result.overhead == pytest.approx(0.001)


def test_a_version_that_nobody_uses_has_no_history():
    counted, history = metrics(), Arrivals(0.0)
    for second in range(1, 100):
        history.look(float(second), counted, 1)
    assert history.measured(100.0, counted, 1).intervals == []
    serve(counted)
    history.look(101.0, counted, 1)
    for second in range(102, 110):
        history.look(float(second), counted, 1)
    result = history.measured(110.0, counted, 1)

    assert [(each.seconds, each.arrived) for each in result.intervals] == [(1, 1), (9, 0)]


def test_a_day_fits_in_little_memory():
    """The newest minute by seconds, what is older in longer intervals, nothing beyond a day."""
    counted, history = metrics(), Arrivals(0.0)
    end = int(1.2 * DAY)
    for second in (*range(60, end - 7200, 60), *range(end - 7200, end)):
        # More in the first hours, which are forgotten.
        serve(counted, 5 if second < 7200 else 1)
        history.look(float(second), counted, 1)
    result = history.measured(float(end), counted, 1)
    size = sum(sys.getsizeof(rows) for rows in history._rows) + sum(
        sys.getsizeof(mark.latencies) for mark in history._marks
    )

    assert DAY <= total(result.intervals, "seconds") < DAY + 2000
    answered = 7200 + (DAY - 7200) / 60
    assert total(result.intervals, "answered") == pytest.approx(answered, rel=0.02)
    assert sum(result.latencies) == pytest.approx(answered, rel=0.13)
    assert [each.seconds for each in result.intervals[-50:]] == [1] * 50
    assert max(each.seconds for each in result.intervals) <= 900
    assert len(result.intervals) < 300
    assert size < 16_000


def test_bursts_are_not_smeared_over_the_quiet_after_them():
    counted, history = metrics(), Arrivals(0.0)
    serve(counted, 100)
    history.look(1.0, counted, 1)
    history.look(40_000.0, counted, 1)
    serve(counted)
    history.look(40_001.0, counted, 1)
    result = history.measured(40_002.0, counted, 1).intervals

    assert [(each.seconds, each.arrived) for each in result[:2]] == [(1, 100), (39_999, 0)]
    assert total(history.measured(40_002.0 + 2 * DAY, counted, 1).intervals, "arrived") == 0


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_replacement_gets_the_same_requests_at_its_own_cost(version):
    before, history = metrics(), Arrivals(0.0)
    serve(before, 5, 0.5)
    history.look(1.0, before, 1)
    after = before if version == "1.0" else metrics(version)
    history.replaced()
    history.look(2.0, after, 1)
    serve(after, 2, 0.01)
    result = history.measured(3.0, after, 1)

    assert [each.arrived for each in result.intervals] == [5, 0, 2]
    assert [each.batches for each in result.intervals] == [0, 0, 1]
    assert total(result.intervals, "worked") == pytest.approx(0.008)
    assert sum(result.latencies) == 2


def test_a_look_costs_few_calls():
    counted, history, calls = metrics(), Arrivals(0.0), {False: 0, True: 0}
    used = False

    def count(_frame, event, _argument):
        calls[used] += event == "call"

    for second in range(4000):
        if used := second >= 2000:
            serve(counted)
        sys.setprofile(count)
        history.look(float(second), counted, 1)
        sys.setprofile(None)

    assert max(calls.values()) < 40 * 2000
