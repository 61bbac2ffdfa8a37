from types import SimpleNamespace

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.parking.forecast import PastUse
from modelserver.ext.parking.history import MOST_USES, History, RecentUses, StoredUse

NOW, HOUR = 2e9, 3600.0


def restarted(history, folder):
    """What the next server has."""
    history.save()
    again = History(folder)
    again.load()
    return again


def test_uses_of_servers_before_come_before_those_of_this_one(tmp_path):
    first = History(tmp_path)
    first.note("m", [PastUse(HOUR + 10, HOUR, 5)], NOW)
    second = restarted(first, tmp_path)

    assert second.uses("m", [], NOW + HOUR) == [PastUse(2 * HOUR + 10, 2 * HOUR, 5)]
    live = [PastUse(80, 60, 7)]
    assert second.uses("m", live, NOW + HOUR) == [PastUse(2 * HOUR + 10, 2 * HOUR, 5), *live]
    assert second.uses("other", live, NOW + HOUR) == live


def test_uses_count_once_however_often_they_are_noted(tmp_path):
    history = History(tmp_path)
    history.note("m", [PastUse(110, 100, 5)], NOW)
    history.note("m", [PastUse(10, 0, 2), PastUse(120, 110, 5)], NOW + 10)
    history = restarted(history, tmp_path)

    assert history.uses("m", [], NOW + 10) == [PastUse(120, 110, 5), PastUse(10, 0, 2)]


def test_old_uses_leave(tmp_path):
    history = History(tmp_path)
    history.note("m", [PastUse(10, 0, 5)], NOW)

    assert len(history.uses("m", [], NOW + 24 * HOUR)) == 1
    assert history.uses("m", [], NOW + 25 * HOUR) == []
    history.note("m", [], NOW + 25 * HOUR)
    assert history.get("m") == []


def test_clock_that_was_set_back_leaves_nothing_in_the_future(tmp_path):
    history = History(tmp_path)
    history.note("m", [PastUse(10, 0, 5)], NOW)

    assert history.uses("m", [], NOW - HOUR) == []


def test_number_of_uses_is_bounded(tmp_path):
    """A server that is restarted every minute adds some each time; the last ones stay."""
    history = History(tmp_path)
    for number in range(MOST_USES + 10):
        history.note("m", [PastUse(2, 1, 1)], NOW + 60 * number)
    stored = history.get("m")

    assert len(stored) == MOST_USES
    assert stored[-1] == StoredUse(NOW + 60 * (MOST_USES + 9) - 2, 1.0, 1)


def test_uses_of_a_minute_or_of_an_old_quarter_are_one():
    """A replacement's counters begin anew, and requests before it was looked at do not count."""
    model = SimpleNamespace(metrics=ServerMetrics(hostname="h").model("m", "1.0"))
    recent = RecentUses(0.0, model)

    def serve(at, requests=1):
        for _ in range(requests):
            model.metrics.requests.seconds.observe(0.1)
        recent.look(at, model)

    for second in (1, 2, 60, 61, 299, 300):
        serve(second, second not in {60, 299})
    assert recent.uses(301.0, model) == [PastUse(2, 0, 1), PastUse(241, 181, 1), PastUse(301, 241, 2)]
    assert recent.uses(2 * HOUR, model) == [PastUse(2 * HOUR, 2 * HOUR - 900, 4)]

    recent.replaced()
    model.metrics = ServerMetrics(hostname="h").model("m", "2.0")
    serve(2 * HOUR + 1, 7)
    serve(2 * HOUR + 2, 2)
    assert recent.uses(2 * HOUR + 2, model)[0] == PastUse(1, 0, 2)
    assert recent.uses(30 * HOUR, model) == []
