"""Watches of requests, alone and together."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

import pytest

from modelserver.surface.watching import Watcher, joined

ANY: Any = None


def test_without_watches_there_is_none() -> None:
    """A request then costs one comparison."""
    assert joined([]) is None


def test_all_watchers_get_all_events() -> None:
    """Those who watch this request, in the order of the watches."""
    first, second = Mock(spec=Watcher), Mock(spec=Watcher)
    watch = joined([lambda _: first, lambda _: None, lambda _: second])
    assert watch is not None
    watcher = watch(ANY)
    assert watcher is not None
    watcher.queued(ANY, ANY)
    watcher.started(200, "t", b"x")
    watcher.part(b"a")
    watcher.ended(True)
    watcher.replied(200, b"b", "t", b"x")
    watcher.left()

    events = [
        call.queued(ANY, ANY),
        call.started(200, "t", b"x"),
        call.part(b"a"),
        call.ended(True, b""),
        call.replied(200, b"b", "t", b"x"),
        call.left(),
    ]
    assert first.method_calls == events
    assert second.method_calls == events


def test_request_that_nobody_wants_has_no_watcher() -> None:
    """The request is handled as without a watch."""
    watch = joined([lambda _: None, lambda _: None])
    assert watch is not None

    assert watch(ANY) is None


EVENTS: Any = {
    "queued": (ANY, ANY),
    "started": (200, "t", b""),
    "part": (b"a",),
    "ended": (True,),
    "replied": (200, b"", "t", b""),
    "left": (),
}


@pytest.mark.parametrize("event", EVENTS)
def test_failure_of_a_watcher_is_logged_alone(event: str, caplog: pytest.LogCaptureFixture) -> None:
    """It reaches neither the request nor the other watchers."""
    broken, other = Mock(spec=Watcher), Mock(spec=Watcher)
    getattr(broken, event).side_effect = ValueError("why")
    watch = joined([lambda _: broken, lambda _: other])
    assert watch is not None
    getattr(watch(ANY), event)(*EVENTS[event])

    assert [name for name, *_ in other.method_calls] == [event]
    assert "ValueError: why" in caplog.text


def test_failure_of_a_watch_is_logged_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The others watch the request."""
    other = Mock(spec=Watcher)
    watch = joined([Mock(side_effect=ValueError("why")), lambda _: other])
    assert watch is not None
    watcher = watch(ANY)
    assert watcher is not None
    watcher.left()

    assert other.left.called
    assert "ValueError: why" in caplog.text
