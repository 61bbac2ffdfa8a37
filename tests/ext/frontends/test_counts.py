import os

from modelserver.ext.frontends.counts import ABSENT, MAX_SEATS, ConnectionCounts, make_counts


def test_smallest_number_counts():
    """The smallest number of those who are there counts; a process that got the descriptor sees it, too."""
    descriptor, ours = make_counts(3)
    assert ours.fewest() == ABSENT
    ours.put(0, 5)
    ours.put(2, 3)
    assert ours.fewest() == 3
    ours.leave(2)
    assert ours.fewest() == 5
    other = ConnectionCounts(descriptor, 3)
    other.put(1, 4)
    other.close()
    assert ours.fewest() == 4
    assert [ours.of(seat) for seat in range(3)] == [5, 4, 0]
    assert MAX_SEATS >= 64
    ours.close()
    os.close(descriptor)
