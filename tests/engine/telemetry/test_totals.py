from modelserver.engine.telemetry.totals import MOST_TYPES, Errors


def test_types_of_errors_are_bounded():
    errors = Errors()
    for number in range(100):
        errors.add(f"Error{number}", 503, "no", f"r{number}")
    errors.add("Error3", 503, "again", "last")

    assert errors.count == 101
    assert len(errors.by_type) == MOST_TYPES + 1
    assert (errors.by_type["other"], errors.by_type["Error3"]) == (100 - MOST_TYPES, 2)
    assert (errors.last.type, errors.last.message, errors.last.request_id) == ("Error3", "again", "last")
