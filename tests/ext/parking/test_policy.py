import pytest

from modelserver.ext.parking.policy import HALF_LIFE, Candidate, ModelValues, choose


def test_value_follows_rate_cost_and_size():
    policy = ModelValues()
    policy.used("often", 100, 0.0)
    policy.used("seldom", 10, 0.0)

    assert policy.value("often", 1.0, 100, 0.0) > policy.value("seldom", 1.0, 100, 0.0)
    assert policy.value("seldom", 20.0, 100, 0.0) > policy.value("often", 1.0, 100, 0.0)
    assert policy.value("seldom", 1.0, 5, 0.0) > policy.value("often", 1.0, 100, 0.0)
    assert policy.value("never", 1.0, 100, 0.0) == 0.0


def test_old_requests_count_less():
    policy = ModelValues()
    policy.used("a", 2, 0.0)

    first = policy.rate("a", 0.0)
    assert policy.rate("a", 2 * HALF_LIFE) == pytest.approx(first / 4)
    policy.used("a", 1, 2 * HALF_LIFE)
    assert policy.rate("a", 2 * HALF_LIFE) == pytest.approx(first * 0.75)


def test_clock_that_jumps_back_changes_nothing():
    policy = ModelValues()
    policy.used("a", 8, 100.0)
    value = policy.value("a", 1.0, 1.0, 100.0)

    assert policy.value("a", 1.0, 1.0, 0.0) == value
    policy.used("a", 0, 0.0)
    assert policy.value("a", 1.0, 1.0, 100.0) == value


def test_what_was_valuable_long_ago_falls_behind():
    """A model has at most one request in the time since the last one, however many it had before."""
    policy = ModelValues()
    policy.used("old", 10_000, 0.0)
    policy.used("new", 1, 1000.0)
    assert policy.rate("old", 1000.0) == 1 / 1000
    assert policy.rate("old", 1000.0) < policy.rate("new", 1000.0)
    policy.used("old", 1, 1000.0)
    assert policy.rate("old", 1000.0) > policy.rate("new", 1000.0)
    policy.forget("old")
    assert policy.rate("old", 1000.0) == 0.0


def test_expected_requests_count_as_if_they_were_here():
    policy = ModelValues()
    policy.used("old", 100, 0.0)
    policy.used("new", 5, 1000.0)

    assert policy.rate("never", 1000.0, coming=5) == policy.rate("new", 1000.0)
    assert policy.rate("old", 1000.0) < policy.rate("new", 1000.0) < policy.rate("old", 1000.0, coming=5)


@pytest.mark.parametrize(
    ("sizes", "needed", "keys"),
    [
        ({"a": 10, "b": 10, "c": 10}, 15, ["a", "b"]),
        ({"a": 10, "b": 10}, 20, ["a", "b"]),
        ({"a": 10, "b": 10}, 21, None),
        ({"a": 1, "b": 100, "c": 1}, 50, ["b"]),
        ({}, 0, []),
        ({}, 1, None),
    ],
)
def test_least_valuable_are_chosen(sizes, needed, keys):
    """In the order of their values, here the alphabet's; none that the others make unnecessary."""
    candidates = [Candidate(key, float(ord(key)), size) for key, size in sizes.items()]
    chosen = choose(reversed(candidates), needed)

    assert (None if chosen is None else sorted(str(each.key) for each in chosen)) == keys
