"""Sums over requests."""

from modelserver.engine.telemetry.totals import MOST_TYPES, Errors, Totals


def test_failures_are_counted():
    totals = Totals()
    totals.fail(1.0, answered=False)
    totals.fail(0.5, answered=True)

    assert (totals.failed.count, totals.failed.seconds) == (2, 1.5)
    assert (totals.failed_answers.count, totals.failed_answers.seconds) == (1, 0.5)


def test_types_of_errors_are_bounded():
    errors = Errors()
    for number in range(100):
        errors.add(f"Error{number}", 503, "no", f"r{number}")
    errors.add("Error3", 503, "again", "last")

    assert errors.count == 101
    assert len(errors.by_type) == MOST_TYPES + 1
    assert (errors.by_type["other"], errors.by_type["Error3"]) == (100 - MOST_TYPES, 2)
    assert (errors.last.type, errors.last.message, errors.last.request_id) == ("Error3", "again", "last")
