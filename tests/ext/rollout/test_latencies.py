import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.ext.rollout.latencies import Latencies, milliseconds


@given(st.lists(st.floats(1e-5, 1000), min_size=1), st.floats(0.01, 1))
def test_percentile_is_within_one_interval(values, share):
    """Within one interval, 4.4 %, of the exact one."""
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]

    assert latencies.percentile(share) == pytest.approx(exact, rel=0.05)


@given(st.lists(st.floats(1e-5, 1000)), st.floats(1e-5, 1000))
def test_only_longer_latencies_are_above(values, bound):
    latencies = Latencies()
    for value in values:
        latencies.add(value)

    assert sum(value > bound * 1.05 for value in values) <= latencies.above(bound)
    assert latencies.above(bound) <= sum(value >= bound * 0.999 for value in values)


def test_extreme_latencies_are_counted():
    latencies = Latencies()
    assert latencies.percentile(0.5) is None

    for value in (0.0, 1e9):
        latencies.add(value)

    assert latencies.total == 2
    assert latencies.above(60) == 1

    assert (milliseconds(0.0123456), milliseconds(None)) == (12.346, None)
