from unittest.mock import Mock, call

import pytest

from modelserver.surface.watching import Watcher, joined

ANY = None


EVENTS = {
    "queued": (ANY, ANY),
    "started": (200, "t", b"x"),
    "part": (b"a",),
    "ended": (True, b""),
    "replied": (200, b"b", "t", b"x"),
    "left": (),
}


def watcher_of(*watches):
    watch = joined(watches)
    return watch(ANY)


def test_all_watchers_get_all_events():
    """A request that nobody watches has none; without any watch, it costs one comparison."""
    first, second = Mock(spec=Watcher), Mock(spec=Watcher)
    watcher = watcher_of(lambda _: first, lambda _: None, lambda _: second)
    for event, arguments in EVENTS.items():
        getattr(watcher, event)(*arguments)

    events = [getattr(call, event)(*arguments) for event, arguments in EVENTS.items()]
    assert first.method_calls == second.method_calls == events
    assert watcher_of(lambda _: None, lambda _: None) is joined([]) is None


@pytest.mark.parametrize("event", EVENTS)
def test_failure_of_a_watcher_is_logged_alone(event, caplog):
    broken, other = Mock(spec=Watcher), Mock(spec=Watcher)
    getattr(broken, event).side_effect = ValueError("why")
    getattr(watcher_of(lambda _: broken, lambda _: other), event)(*EVENTS[event])

    assert [name for name, *_ in other.method_calls] == [event]
    assert "ValueError: why" in caplog.text


def test_failure_of_a_watch_is_logged_alone(caplog):
    other = Mock(spec=Watcher)
    watcher_of(Mock(side_effect=ValueError("why")), lambda _: other).left()

    assert other.left.called
    assert "ValueError: why" in caplog.text
