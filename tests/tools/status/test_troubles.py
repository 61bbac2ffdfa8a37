import pytest

from modelserver.tools.status.command import (
    FAILS,
    LOOK,
    Trouble,
    event_lines,
    of_certificate,
    of_events,
    of_model,
)

SINCE = "2026-05-30T20:00:00"


def version(**more):
    """A description in which all is well, but for what is said."""
    well = {
        "modelName": "digits",
        "modelVersion": "1.0",
        "minWorkers": 1,
        "workers": [{"status": "READY"}],
        "jobQueueStatus": {"remainingCapacity": 100, "pendingRequests": 0},
    }
    return well | more


_LAST = "500 InternalServerException: KeyError: 'x'"


def last_error(at):
    last = {"time": at, "type": "InternalServerException", "status": 500, "message": "KeyError: 'x'"}
    return {"count": 3, "failing": False, "last": last}


_FULL = {"remainingCapacity": 0, "pendingRequests": 100}
_NONE = {"workers": [], "minWorkers": 0}
_ONE_OF_TWO = [{"status": "READY"}, {"status": "FAILED", "failure": "the GPU is full"}]


@pytest.mark.parametrize(
    ("more", "trouble"),
    [
        (
            {"status": "FAILED", "failure": "no file weights.pt"},
            "FAILS not-restored not restored: no file weights.pt",
        ),
        (
            {"errors": last_error("2026-05-30T19:00:00.000Z") | {"failing": True}},
            f"FAILS modelserverfailing all of the last batches failed: {_LAST}",
        ),
        ({"errors": last_error("2026-05-30T20:00:00.001Z")}, f"LOOK last-errors 3 errors, the last {_LAST}"),
        (
            {"workers": [{"status": "STARTING", "failure": "no weights"}]},
            "FAILS modelservernoworker no worker is loaded: no weights",
        ),
        (
            {"workers": _ONE_OF_TWO},
            "FAILS modelserverworkersfail 1 of 2 workers do not work: the GPU is full",
        ),
        ({"jobQueueStatus": _FULL}, "FAILS modelserverrefuses the queue is full: 100 requests wait"),
        (
            {"autoscaling": {"wish": 3}},
            "LOOK modelserverwantsworkers autoscaling wants 3 workers, 1 are ready",
        ),
        (
            _NONE | {"parking": {"state": "failed", "failure": "no room"}},
            "FAILS cannot-load-on-demand it cannot be loaded: no room",
        ),
        (
            {"replacement": {"modelUrl": "new.mar", "failure": "no weights"}},
            "LOOK not-replaced not replaced by new.mar: no weights",
        ),
    ],
)
def test_trouble_of_a_model_is_named(more, trouble):
    """By its level, the paragraph of the runbook, and in words."""
    level, anchor, text = trouble.split(" ", 2)
    assert list(of_model(version(**more), SINCE)) == [Trouble(level, "digits 1.0", text, anchor)]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"errors": last_error("2026-05-30T19:59:59.000Z")},
        _NONE,
        _NONE | {"parking": {"state": "parked"}},
        {"replacement": {"modelUrl": "new.mar", "status": "loading"}},
    ],
    ids=["well", "old error", "scaled to none", "parked", "being replaced"],
)
def test_model_without_trouble_is_well(more):
    assert list(of_model(version(**more), SINCE)) == []


@pytest.mark.parametrize(("days", "level"), [(20.0, ""), (10.0, LOOK), (1.0, FAILS), (-1.0, FAILS)])
def test_certificate_is_reported_before_it_ends(days, level):
    assert [each.level for each in of_certificate(days)] == ([level] if level else [])


def test_full_disk_fails():
    events = [{"kind": "disk_full", "message": "The disk of /logs is full to 97 %"}, {"kind": "retry"}]
    assert [(each.level, each.anchor) for each in of_events(events)] == [(FAILS, "modelserverdisk")]


def test_a_trouble_has_one_line_and_its_paragraph():
    text = str(Trouble(FAILS, "digits 1.0", f"no worker:\n  {'x' * 500}", "modelservernoworker"))
    first, second = text.splitlines()

    assert first.startswith("FAILS  digits 1.0: no worker: xxx")
    assert len(first) < 250
    assert second.strip() == "runbook.md#modelservernoworker"


def test_events_of_a_kind_are_one_line():
    """The newest come first; more kinds than anybody reads are counted."""

    def event(number, **more):
        time = f"2026-05-30T21:{number:02d}:00.000Z"
        return {"time": time, "level": "warn", "kind": "retry", "message": f"try {number}"} | more

    lines = event_lines(
        [event(1, model="a", version="1"), event(2, kind="killed"), event(3, model="a", version="1")]
    )

    assert lines == [
        "  2026-05-30 21:03  warn   a 1 retry ×2: try 3",
        "  2026-05-30 21:02  warn   killed: try 2",
    ]
    assert event_lines([event(number, kind=str(number)) for number in range(25)])[-1].startswith(
        "  and 5 kinds more"
    )
