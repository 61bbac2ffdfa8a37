import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.ext.rollout.traffic import intervals, point_of, shares


def version_at(point, weights, ready):
    return next(version for end, version in intervals(weights, ready) if point < end)


WEIGHTS = (
    st.lists(st.integers(0, 100), min_size=1, max_size=5)
    .filter(sum)
    .map(lambda parts: {str(number): part * 100 / sum(parts) for number, part in enumerate(parts)})
)


@given(WEIGHTS, st.sets(st.sampled_from("01234")))
def test_ready_versions_share_all_points(weights, ready):
    able = {version for version, weight in weights.items() if weight and version in ready}
    result = intervals(weights, ready)
    total = sum(weights[version] for version in able)

    assert shares(result) == pytest.approx(
        {v: weights[v] * 100 / total for v in weights if v in able}, abs=1e-6
    )
    assert not result or result[-1].end == 1.0


@given(WEIGHTS, st.sets(st.sampled_from("01234")), st.floats(0, 1, exclude_max=True))
def test_points_of_ready_versions_stay(weights, ready, point):
    before = version_at(point, weights, set(weights))
    if before in ready:
        assert version_at(point, weights, ready) == before


@given(st.integers(0, 100), st.integers(0, 100), st.binary())
def test_as_few_users_as_possible_move(before, after, user):
    first = version_at(point_of(user), {"1.0": 100 - before, "2.0": before}, {"1.0", "2.0"})
    second = version_at(point_of(user), {"1.0": 100 - after, "2.0": after}, {"1.0", "2.0"})

    if first != second:
        assert second == ("2.0" if after > before else "1.0")


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("form", ["%d", "user-%d", "%08d@example.com"])
def test_similar_names_are_spread(share, form):
    """As many users as the weight says, whatever their names have in common."""
    users = [(form % number).encode() for number in range(20_000)]
    assert sum(point_of(user) < share for user in users) / len(users) == pytest.approx(share, rel=0.1)


def test_a_point_is_the_same_everywhere():
    assert point_of(b"alice") == 0.08567405282519758
