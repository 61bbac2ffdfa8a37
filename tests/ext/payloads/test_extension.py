from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.ext.payloads.extension import watch_with
from modelserver.ext.payloads.log import PayloadLimits
from modelserver.surface.inference.routes import Route

ANY: Any = SimpleNamespace(name="m")
_HEADERS = [(b"content-type", b"text/plain"), (b"Ce-Id", b"7")]


class Log:
    def __init__(self, mode="all", body=1000):
        self.requests, self.responses = mode != "response", mode != "request"
        self.limits = PayloadLimits(body=body)
        self.events: list[Any] = []
        self.too_large_ones = 0

    def put(self, event):
        self.events.append(event)

    def drop(self, why):
        assert why == "too_large"
        self.too_large_ones += 1

    @property
    def lines(self):
        """Kind, body and type of each event."""
        return [(e.kind.rpartition(".")[2], e.body, e.content_type) for e in self.events]


class Inner:
    def __init__(self, path="/predictions/m/1.0?key=1", route=None):
        route = route or Route("m", "1.0")
        self.target = SimpleNamespace(path=path.partition("?")[0], text=path, route=route)
        self.headers = _HEADERS
        self.body = b"question"
        self.content_type = "text/plain"

    def join(self, parts):
        return b"".join(parts)


def served(act, log=None, inner=None):
    """The log after a request was served so: ``act`` gets the request and its watcher."""
    log, inner = log or Log(), inner or Inner()
    act(inner, watch_with(log)(inner))  # type: ignore[arg-type]  # as much of it as is needed
    return log


def test_request_and_response_are_events_of_one_id():
    def respond(_, watcher):
        watcher.replied(200, b"answer", "text/html", b"x-a: b\r\nx-batch-id: b-1\r\nx-batch-size: 2\r\n")

    log = served(respond)

    assert log.lines == [("request", b"question", "text/plain"), ("response", b"answer", "text/html")]
    assert {e.id for e in log.events} == {"7"}
    about = {"modelname": "m", "modelversion": "1.0", "path": "/predictions/m/1.0"}
    assert [e.about for e in log.events] == [about, {**about, "batchid": "b-1"}]


def test_event_names_the_model_that_the_body_names():
    """A compressed body is read after the request was watched."""

    def address(inner, watcher):
        inner.target.route = Route("chat", "2.0")
        watcher.queued(ANY, ANY)

    named = served(address, inner=Inner(route=Route("")))
    assert [named.events[0].about[name] for name in ("modelname", "modelversion")] == ["chat", "2.0"]


def test_ce_id_that_is_none_gives_way_to_a_new_one():
    inner = Inner()
    inner.headers = [(b"ce-id", b"bad id")]

    log = served(lambda _, watcher: watcher.queued(ANY, ANY), inner=inner)
    assert len(log.events[0].id) == 36


@pytest.mark.parametrize("act", [lambda w: w.replied(400, b"", "", b""), lambda w: w.left()])
def test_failures_log_the_request_alone(act):
    log = served(lambda _, watcher: act(watcher))
    assert [kind for kind, *_ in log.lines] == ["request"]


def test_response_in_parts_is_one_event_unless_it_is_too_large():
    def respond(watcher, *, complete):
        watcher.started(200, "text/plain", b"")
        watcher.part(b"a")
        watcher.part(b"b")
        watcher.ended(complete)

    log = served(lambda _, watcher: respond(watcher, complete=True))
    assert log.lines[1] == ("response", b"ab", "text/plain")

    broken = served(lambda _, watcher: respond(watcher, complete=False))
    assert [kind for kind, *_ in broken.lines] == ["request"]

    log = Log(body=10)
    watcher = watch_with(log)(Inner())  # type: ignore[arg-type]  # as much of it as is needed
    watcher.started(200, "text/plain", b"")
    for _ in range(3):
        watcher.part(bytes(6))

    assert watcher._parts == []
    watcher.ended(True)
    assert [kind for kind, *_ in log.lines] == ["request"]
    assert log.too_large_ones == 1


@pytest.mark.parametrize(
    ("route", "headers", "kind"),
    [
        (Route("m", protocol="v1"), [], "application/json"),
        (Route("m", protocol="v2"), [(b"Inference-Header-Content-Length", b"5")], "application/octet-stream"),
        (Route("m"), [], "application/octet-stream"),
    ],
)
def test_request_without_a_type_has_its_protocols(route, headers, kind):
    inner = Inner(route=route)
    inner.content_type, inner.headers = "", headers

    log = served(lambda _, watcher: watcher.queued(ANY, ANY), inner=inner)
    assert log.lines == [("request", b"question", kind)]


@pytest.mark.parametrize("mode", ["request", "response"])
def test_mode_chooses_events(mode):
    log = served(lambda _, watcher: watcher.replied(200, b"answer", "text/html", b""), Log(mode))
    assert [kind for kind, *_ in log.lines] == [mode]
