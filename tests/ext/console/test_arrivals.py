"""What came to a version, and how long that is remembered."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.console.arrivals import DAY, Arrivals, follow_arrivals


def registered(version="1.0", workers=1):
    pool = SimpleNamespace(workers=[None] * workers)
    metrics = ServerMetrics(hostname="h").model("m", version)
    return SimpleNamespace(metrics=metrics, pool=pool, histories={})


def serve(model, requests=1, seconds=0.01):
    for _ in range(requests):
        model.metrics.requests.answered(seconds, 0.001, False)
        model.metrics.batches.waited(0.001)
    model.metrics.batches.finished(requests, requests, 8, "idle", seconds - 0.002, (0.0, 0.0, 0.0))


def total(intervals, field):
    return float(sum(getattr(each, field) for each in intervals))


def test_requests_are_model_with_what_they_cost():
    model = registered(workers=2)
    history = Arrivals(10.0, model)
    serve(model, 3)
    history.look(11.0, model)
    model.metrics.requests.rejected("queue_full")
    result = history.measured(12.0, model)

    assert [tuple(map(float, each)) for each in result.intervals] == [
        pytest.approx((1, 3, 0, 1, 3, 0.008, 2)),
        pytest.approx((1, 0, 1, 0, 0, 0, 2)),
    ]
    assert sum(result.latencies) == 3
    assert result.overhead == pytest.approx(0.001)


def test_a_version_that_nobody_uses_has_no_history():
    model = registered()
    history = Arrivals(0.0, model)
    for second in range(1, 100):
        history.look(float(second), model)
    assert history.measured(100.0, model).intervals == []
    serve(model)
    history.look(101.0, model)
    for second in range(102, 110):
        history.look(float(second), model)
    result = history.measured(110.0, model)

    assert [(each.seconds, each.arrived) for each in result.intervals] == [(1, 1), (9, 0)]


def test_a_day_fits_in_little_memory():
    """The newest minute by seconds, what is older in longer intervals, nothing beyond a day."""
    model = registered()
    history = Arrivals(0.0, model)
    end = int(1.2 * DAY)
    for second in (*range(60, end - 7200, 60), *range(end - 7200, end)):
        # More in the first hours, which are forgotten.
        serve(model, 5 if second < 7200 else 1)
        history.look(float(second), model)
    result = history.measured(float(end), model)
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
    model = registered()
    history = Arrivals(0.0, model)
    serve(model, 100)
    history.look(1.0, model)
    history.look(40_000.0, model)
    serve(model)
    history.look(40_001.0, model)
    result = history.measured(40_002.0, model).intervals

    assert [(each.seconds, each.arrived) for each in result[:2]] == [(1, 100), (39_999, 0)]
    assert total(history.measured(40_002.0 + 2 * DAY, model).intervals, "arrived") == 0


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_replacement_gets_the_same_requests_at_its_own_cost(version):
    before = registered()
    history = Arrivals(0.0, before)
    serve(before, 5, 0.5)
    history.look(1.0, before)
    after = before if version == "1.0" else registered(version)
    history.replaced()
    history.look(2.0, after)
    serve(after, 2, 0.01)
    result = history.measured(3.0, after)

    assert [each.arrived for each in result.intervals] == [5, 0, 2]
    assert [each.batches for each in result.intervals] == [0, 0, 1]
    assert total(result.intervals, "worked") == pytest.approx(0.008)
    assert sum(result.latencies) == 2


def test_a_look_costs_few_calls():
    model, calls = registered(), {False: 0, True: 0}
    history = Arrivals(0.0, model)
    used = False

    def count(_frame, event, _argument):
        calls[used] += event == "call"

    for second in range(4000):
        if used := second >= 2000:
            serve(model)
        sys.setprofile(count)
        history.look(float(second), model)
        sys.setprofile(None)

    assert max(calls.values()) < 40 * 2000


async def test_versions_with_visible_metrics_are_followed():
    models = [registered(), registered()]
    models[1].metrics.series.hide()
    following = asyncio.ensure_future(follow_arrivals(SimpleNamespace(versions=lambda: models)))
    await asyncio.sleep(0)
    following.cancel()

    assert [bool(model.histories) for model in models] == [True, False]
