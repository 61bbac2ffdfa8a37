import random

from modelserver_handlers.huggingface.batches import groups_by_length


def test_rows_share_calls_with_those_of_similar_length():
    """Nobody is padded to more than twice its length, or 32; all are in one group."""
    lengths = [random.Random(seed).choice((3, 8, 40, 41, 100, 500)) for seed in range(50)]

    groups = groups_by_length(lengths)

    assert sorted(place for group in groups for place in group) == list(range(50))
    for group in groups:
        longest, shortest = lengths[group[0]], lengths[group[-1]]
        assert longest == max(lengths[place] for place in group)
        assert longest <= max(32, 2 * shortest)

    assert groups_by_length([1, 30, 5]) == [[1, 2, 0]]
    assert groups_by_length([700, 700]) == [[0, 1]]
    assert groups_by_length([]) == []
