"""Which records of the log are events, and of which model."""

import ast
import logging
from pathlib import Path

import pytest

import modelserver
from modelserver.ext.events.records import KINDS, LONGEST, event_of, kind_of, level_of, subject_of

NONE = set()


def record(template, *arguments, level=logging.INFO, **extra):
    """As a logger makes it."""
    made = logging.getLogger("modelserver.x").makeRecord(
        "modelserver.x", level, "f.py", 1, template, arguments, None, extra=extra
    )
    made.created = 1780177563.625
    return made


def test_the_server_has_the_texts_of_the_table():
    """A text that is changed there is changed in the table."""
    texts = {
        node.value
        for path in Path(modelserver.__file__).parent.rglob("*.py")
        if path.name != "records.py" or path.parent.name != "events"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert KINDS.keys() - texts == set()


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (record("Model %s loaded.", "m"), "registered"),
        (record("%s: %s", "m", "batch size 4", event="changed"), "changed"),
        (record("Model %s %s is loaded ahead of time", "m", "1"), "prewarmed"),
        (record("Anything of %s", "the day"), None),
        (record("Something is odd", level=logging.WARNING), "warn"),
        (record("Something failed", level=logging.CRITICAL), "error"),
        (
            record("Worker %s %s. Worker disconnected.", "W-1-m_1", "ended", level=logging.WARNING),
            "restarted",
        ),
    ],
)
def test_changes_warnings_and_errors_are_events(made, kind):
    assert kind_of(made) == kind


@pytest.mark.parametrize(
    ("made", "subject"),
    [
        (record("Model %s %s is parked (%s)", "a", "1.0", "idle"), ("a", "1.0")),
        (record("Model %s: traffic %s", "a", "2 50 %"), ("a", "")),
        (record("Worker %s is ready, %.1f s after its start.", "W-9000-a_b_1.0", 1.0), ("a_b", "1.0")),
        (record("Worker %s is given up", "W-9000-a_1_0"), ("a", "1_0")),
        (record("Autoscaling %s failed", "a_1.0"), ("a", "1.0")),
        (record("Retry worker: %d in %g seconds.", 9000, 1.0, label="W-9000-a_1.0"), ("a", "1.0")),
        (record("Workflow %s unregistered.", "w"), ("w", "")),
        (record("Worker %s is odd", "of somebody"), ("of somebody", "")),
        (record("The disk is full"), ("", "")),
        (record("%(a)s", {"a": 1}), ("", "")),
    ],
)
def test_the_model_is_in_the_arguments(made, subject):
    assert subject_of(made, lambda *pair: pair == ("a", "1_0")) == subject


def test_an_event_has_the_text_time_and_level_of_its_record():
    made = record(
        "Worker %s could not load its model: %s", "W-1-m_1", "x" * 5000, level=logging.ERROR, attempt=3
    )
    event = event_of(made, 7, "load_failed", ("m", "1"))

    assert (event.id, event.kind, event.attempt) == (7, "load_failed", 3)
    assert (event.model, event.version) == ("m", "1")
    assert (event.time, event.level) == ("2026-05-30T21:46:03.625Z", "error")
    assert len(event.message) == LONGEST
    assert event.message.startswith("Worker W-1-m_1 could not load its model: xxx")


def test_an_exception_is_named():
    made = record("It failed", level=logging.ERROR)
    error = KeyError("weights")
    made.exc_info = (KeyError, error, None)

    assert event_of(made, 1, "error", ("", "")).message == "It failed: KeyError: 'weights'"
    assert level_of(made) == "error"
