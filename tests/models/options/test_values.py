import pytest

from modelserver.models.options.values import (
    LARGEST,
    CorrectedError,
    anything,
    boolean,
    device_list,
    excerpt,
    flag_or_auto,
    mapping,
    one_of,
    raised_to,
    whole,
)


@pytest.mark.parametrize(
    ("values", "written", "read"),
    [
        (whole(0), 0, 0),
        (whole(1, 8), 8, 8),
        (raised_to(1), LARGEST, LARGEST),
        (boolean(), False, False),
        (anything("a text"), [1], [1]),
        (flag_or_auto(), True, True),
        (flag_or_auto(), "auto", None),
        (one_of("", "window"), "Window", "window"),
        (device_list(), [3, 1], (3, 1)),
        (mapping("a mapping"), {"a": 1}, {"a": 1}),
    ],
)
def test_values_are_read_as_they_are_used(values, written, read):
    assert values.read(written) == read


@pytest.mark.parametrize(
    ("values", "written", "needed"),
    [
        (whole(1), 0, "a whole number of at least 1"),
        (whole(1), True, "a whole number of at least 1"),
        (whole(1), "8", "a whole number of at least 1"),
        (whole(0, 8), 9, "a whole number of at most 8"),
        (whole(0), LARGEST + 1, f"a whole number of at most {LARGEST}"),
        (raised_to(1), 1.5, "a whole number of at least 1"),
        (raised_to(1), LARGEST + 1, f"a whole number of at most {LARGEST}"),
        (boolean(), 1, "true or false"),
        (flag_or_auto(), "yes", "true, false or auto"),
        (one_of("", "window", "greedy"), "fast", "one of window, greedy"),
        (device_list(), 1, "a list of whole numbers"),
        (device_list(), [-1], "a whole number of at least 0"),
        (device_list(), [0, 0], "a list that names no device twice"),
        (mapping("a mapping"), [], "a mapping"),
    ],
)
def test_other_values_are_refused(values, written, needed):
    """The message says what is needed instead."""
    with pytest.raises(ValueError, match=f"^{needed} is needed$"):
        values.read(written)


def test_errors_carry_a_value_or_a_short_quotation():
    """The error carries the value that is used instead. On one line, of at most 80 characters."""
    with pytest.raises(CorrectedError, match="at least 1") as caught:
        raised_to(1).read(-3)
    assert caught.value.value == 1

    assert excerpt("a\n b") == "a b"
    assert (len(excerpt("x" * 200)), excerpt("x" * 200)[-1]) == (80, "…")
