import itertools

import pytest
from tests.tools.doctor.conftest import Model, answer

from modelserver.testing.answer import Answer
from modelserver.tools.doctor.answer_checks import AnswerChecks, difference, short
from modelserver.tools.doctor.findings import CheckReport
from modelserver.tools.doctor.probing import SourceLine


def result(handler, rows, sizes=(2, 4)):
    report = CheckReport(methods={"handle": SourceLine("h.py", 1)})
    checks = AnswerChecks(report, Model(handler), rows, 1e-3)
    checks.check_alone()
    if checks.samples:
        checks.check_batches(sizes)
        checks.check_bad_row()
    return {each.id: each.seen for each in report.findings}


def number(body):
    return int(body)


def multiplied(bodies):
    return [number(body) * len(bodies) for body in bodies]


def single(bodies):
    (body,) = bodies
    return [number(body)]


@pytest.mark.parametrize(
    ("handler", "kind", "seen"),
    [
        (
            multiplied,
            "answers-differ",
            "was answered 2 instead of 1. The tolerance is 0.001 of the largest number.",
        ),
        (
            lambda bodies: [number(body) for body in bodies[::-1]],
            "order-changed",
            "In a batch of 2, row 0 (0.json) got the answer of 1.json.",
        ),
        (
            lambda bodies: [number(body) for body in bodies[:1]],
            "wrong-count",
            "For 2 rows the handler returned 1 answer.",
        ),
        (single, "batch-failed", "A call with 2 rows failed"),
    ],
    ids=["multiplied", "reversed", "first", "single"],
)
def test_wrong_answers_of_batches_are_findings(rows, handler, kind, seen):
    assert seen in result(handler, rows)[kind]


def test_no_answer_to_an_input_that_was_made(rows):
    report = CheckReport()
    checks = AnswerChecks(report, Model(lambda bodies: []), rows, 0)
    checks.check_alone(generated=True)

    assert checks.alone == {}
    assert {each.seen for each in report.findings} == {"For 1 row the handler returned 0 answers."}
    assert report.left_out == {}


def test_answers_that_vary_are_reported(rows):
    count = itertools.count()
    assert result(lambda bodies: [next(count) for _ in bodies], rows).keys() == {"answers-vary"}

    late = itertools.chain([5] * 4, itertools.count())
    assert result(lambda bodies: [next(late) for _ in bodies], rows[:1]).keys() == {"answers-vary"}


def test_bad_rows_differ_in_type(rows):
    def spreads(bodies):
        good = all(body.isdigit() for body in bodies)
        return [int(body) if good else 0 for body in bodies]

    assert result(lambda bodies: [number(body) for body in bodies], rows).keys() == {"bad-row-retried"}
    seen = result(spreads, rows)["bad-row-spreads"]
    assert "Beside a JSON value of another type, 0.json was answered 0 instead of 1." in seen


def test_inputs_that_are_refused(rows):
    report = CheckReport()

    def handle(bodies):
        raise ValueError("never")

    made = AnswerChecks(report, Model(handle), rows, 0)
    made.check_alone(generated=True)
    assert (made.alone, report.findings) == ({}, [])
    assert "an input that was made is refused" in report.left_out["answers"]
    sent = AnswerChecks(report, Model(handle), rows, 0)
    sent.check_alone()
    assert sent.alone == {}
    assert [(each.id, each.place) for each in report.findings] == [
        ("input-refused", SourceLine("h.py", 3, "handle"))
    ]


def test_a_worker_that_ends(rows):
    report, model = CheckReport(), Model(lambda bodies: [1 for _ in bodies])
    model.ends = lambda bodies: len(bodies) == 2
    checks = AnswerChecks(report, model, rows, 0)
    checks.check_alone()
    checks.check_batches([2])
    model.ends = lambda bodies: bodies == [b""]
    AnswerChecks(report, model, [], 0).check_empty()

    assert [each.seen for each in report.findings] == [
        "The worker ended with a batch of 2 rows: Worker died."
    ]


def test_empty_body_must_not_be_500():
    report = CheckReport()
    for handler in (lambda bodies: [number(body) for body in bodies], lambda bodies: ["nothing"]):
        AnswerChecks(report, Model(handler), [], 0).check_empty()

    assert [each.id for each in report.findings] == ["empty-body"]


@pytest.mark.parametrize(
    ("alone", "other", "lines"),
    [
        ([1.0, 100.0], [1.05, 100.0], ""),
        ([1.0, 100.0], [1.2, 100.0], "1.2 instead of 1.0 at [0]"),
        ({"a": 0.6, "b": 0.4}, {"b": 0.4, "a": 0.6}, ""),
        ({"a": [1, "x"]}, {"a": [1, "y"]}, '"y" instead of "x" at a[1]'),
        ({"a": 1}, {"b": 1}, '{"b": 1} instead of {"a": 1}'),
        ([], [1], "[1] instead of []"),
        (True, 1, "1 instead of true"),
        (0, 0, ""),
        ([0] * 2000, [0] * 1999 + [7], ""),
        ([0] * 2000, [0] * 1990 + [7] * 10, "7 instead of 0 at [1990]"),
    ],
)
def test_differences_are_described(alone, other, lines):
    assert difference(answer(alone), answer(other), 1e-3) == lines


def test_bodies_that_are_not_json_are_compared_as_text():
    text, other = Answer(200, {}, b"one"), Answer(200, {}, b"two")

    assert difference(text, text, 0) == ""
    assert difference(text, other, 0) == "two instead of one"
    assert difference(text, Answer(503, {}, b"one"), 0) == "status 503 instead of 200"
    assert short(Answer(200, {}, b"a " * 100)).endswith("… (200 bytes)")
