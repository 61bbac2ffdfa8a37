from modelserver.engine.telemetry.arrivals import ArrivalInterval
from modelserver.ext.parking.forecast import PastUse
from modelserver.ext.parking.history import MOST_USES, History, StoredUse

NOW, HOUR = 2e9, 3600.0


def interval(seconds, requests=0):
    return ArrivalInterval(seconds, requests, 0)


def restarted(history, folder):
    """What the next server has."""
    history.save()
    again = History(folder)
    again.load()
    return again


def test_uses_of_servers_before_come_before_those_of_this_one(tmp_path):
    first = History(tmp_path)
    first.note("m", [interval(10, 5), interval(HOUR)], NOW)
    second = restarted(first, tmp_path)

    assert second.uses("m", [], NOW + HOUR) == [PastUse(2 * HOUR + 10, 2 * HOUR, 5)]
    live = [interval(20, 7), interval(60)]
    assert second.uses("m", live, NOW + HOUR) == [PastUse(2 * HOUR + 10, 2 * HOUR, 5), PastUse(80, 60, 7)]
    assert second.uses("other", live, NOW + HOUR) == [PastUse(80, 60, 7)]


def test_uses_count_once_however_often_they_are_noted(tmp_path):
    history = History(tmp_path)
    history.note("m", [interval(10, 5), interval(100)], NOW)
    history.note("m", [interval(10, 5), interval(100), interval(10, 2)], NOW + 10)
    history = restarted(history, tmp_path)

    assert history.uses("m", [], NOW + 10) == [PastUse(120, 110, 5), PastUse(10, 0, 2)]


def test_old_uses_leave(tmp_path):
    history = History(tmp_path)
    history.note("m", [interval(10, 5)], NOW)

    assert len(history.uses("m", [], NOW + 24 * HOUR)) == 1
    assert history.uses("m", [], NOW + 25 * HOUR) == []
    history.note("m", [], NOW + 25 * HOUR)
    assert history.get("m") == []


def test_clock_that_was_set_back_leaves_nothing_in_the_future(tmp_path):
    history = History(tmp_path)
    history.note("m", [interval(10, 5)], NOW)

    assert history.uses("m", [interval(60)], NOW - HOUR) == []


def test_number_of_uses_is_bounded(tmp_path):
    """A server that is restarted every minute adds some each time; the last ones stay."""
    history = History(tmp_path)
    for number in range(MOST_USES + 10):
        history.note("m", [interval(1, 1), interval(1)], NOW + 60 * number)
    stored = history.get("m")

    assert len(stored) == MOST_USES
    assert stored[-1] == StoredUse(NOW + 60 * (MOST_USES + 9) - 2, 1.0, 1)
