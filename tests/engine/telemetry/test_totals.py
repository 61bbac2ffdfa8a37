"""Sums over batches and requests."""

from modelserver.engine.telemetry.totals import MOST_TYPES, Errors, Totals


def test_batches_are_summed_by_size():
    totals = Totals()
    totals.batch(4, 2, 0.5, (0.1, 0.2, 0.1))
    totals.batch(4, 1, 0.5, (0.1, 0.2, 0.1))
    totals.batch(1, 1, 0.5, (0.0, 0.0, 0.0))
    four, one = totals.by_size[4], totals.by_size[1]

    assert (four.batches, four.requests, one.batches, one.requests) == (2, 3, 1, 1)
    assert (four.before, four.inference, four.after) == (0.2, 0.4, 0.2)
    seconds = four.each_before, four.each_inference, four.each_after
    assert [round(each, 9) for each in seconds] == [0.3, 0.6, 0.3]
    assert (one.before, one.inference, one.each_inference, one.after) == (0.0, 0.5, 0.5, 0.0)


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
