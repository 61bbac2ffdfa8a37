from types import SimpleNamespace

import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.parking.forecast import Forecast, PastUse, forecast
from modelserver.ext.parking.history import RecentUses

HOUR, DAY = 3600.0, 86_400.0


def history(*uses):
    """Requests that began so long ago, and came for so many seconds."""
    return [PastUse(ago, ago - seconds, requests) for ago, seconds, requests in uses]


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([], None),
        ([(5.0, 1.0, 7)], None),  # it is used now
        ([(DAY - 60, 10.0, 7)], Forecast(7, 70.0)),
        ([(DAY - 60, 10.0, 7), (DAY - 80, 10.0, 2)], Forecast(9, 90.0)),
        ([(DAY - 91, 10.0, 7)], None),  # in time for the next look
        ([(DAY + 100, 900.0, 7)], Forecast(7, 800.0)),  # some time in this quarter
        ([(DAY + 100, 99.0, 7)], None),  # over
        ([(HOUR - 60, 10.0, 1)], None),  # once is no habit
        ([(HOUR - 60, 10.0, 1), (2 * HOUR - 60, 10.0, 1)], None),
        ([(HOUR - 60, 10.0, 5), (2 * HOUR + 300, 900.0, 3), (3 * HOUR + 600, 900.0, 9)], Forecast(3, 70.0)),
        ([(count * HOUR - 60, 10.0, 1) for count in (1, 2, 4)], None),
    ],
)
def test_what_happened_at_the_same_time_is_expected(uses, expected):
    assert forecast(history(*uses), 90.0) == expected


def test_a_model_without_requests_has_no_forecast():
    assert forecast([], 90.0) is None


def test_looking_far_ahead_does_not_see_the_present():
    """A model that takes hours to load is not expected because it is in use."""
    assert forecast(history((5.0, 5.0, 1), (HOUR + 5, 5.0, 1), (2 * HOUR + 5, 5.0, 1)), 9 * HOUR) is None


@pytest.mark.parametrize(("period", "uses"), [(HOUR, 3), (DAY, 1)])
def test_real_arrivals_show_the_habit(period, uses):
    """The counters of a model, looked at as by the server: only shortly before its time it is expected."""
    model = SimpleNamespace(metrics=ServerMetrics(hostname="h").model("m", "1.0"))
    recent = RecentUses(0.0, model)
    now, first = 0.0, 600.0
    for count in range(uses):
        while now < first + count * period:
            now += 30.0
            recent.uses(now, model)
        model.metrics.requests.seconds.observe(0.1)
        now += 1.0
        recent.look(now, model)
    coming = first + uses * period
    expected_at = []
    while (now := now + 30.0) <= coming:
        if forecast(recent.uses(now, model), 90.0) is not None:
            expected_at.append(coming - now)

    assert len(expected_at) == 3
    assert max(expected_at) <= 90.0
