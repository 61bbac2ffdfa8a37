import pytest

from modelserver.tools.tune import sweep
from modelserver.tools.tune.figure import Figure
from modelserver.tools.tune.goal import ModelSetting, parse_goal
from modelserver.tools.tune.sweep import Costs, SearchBounds

LIMIT = parse_goal("p99<=70ms")
FAST = parse_goal("max-throughput")
BOUNDS = SearchBounds()


def costs(a, b, *sizes, beside=1.0):
    known = Costs()
    for n in sizes:
        cost = a + b * n
        latency = cost + beside + sweep.COST_DELAY
        known.add(n, Figure(50, n / latency * 1e3, latency, latency, latency, clients=n, costs={n: cost}))
    return known


def test_sizes_are_doubled_up_to_the_largest():
    assert sweep.sizes(1) == [1]
    assert sweep.sizes(16) == [1, 2, 4, 8, 16]
    assert sweep.sizes(20) == [1, 2, 4, 8, 16, 20]


def test_sizes_that_take_longer_than_the_limit_are_pruned():
    """Without a limit those that bring nothing are, and those that the clients cannot fill."""
    few, known = SearchBounds(clients=3), costs(20, 2, 1, 2, 4, 8, 16)
    assert sweep.pruned(LIMIT, BOUNDS, 16, costs(20, 2, 1, 2, 4, 8)) is None
    assert sweep.pruned(FAST, BOUNDS, 64, costs(20, 2, 1, 2, 4, 8, 16, 32)) is None
    assert sweep.pruned(FAST, few, 4, costs(20, 2, 1, 2)) is None
    for reason, pruned in (
        ("a batch of 32 would take about 84 ms", sweep.pruned(LIMIT, BOUNDS, 32, known)),
        ("a batch of 32 alone takes 84 ms", sweep.pruned(LIMIT, BOUNDS, 64, costs(20, 2, 32))),
        ("no more throughput", sweep.pruned(FAST, BOUNDS, 8, costs(0, 10, 1, 2, 4))),
        ("3 clients", sweep.pruned(FAST, few, 8, costs(20, 2, 1, 2, 4))),
    ):
        assert reason in (pruned or "")


def test_the_line_suggests_a_size_between_those_measured():
    """20 + 2n stays below 70 ms with some room at 21; 32 was too slow, 16 leaves throughput on the table."""
    between = sweep.in_between(70.0, costs(20, 2, 1, 2, 4, 8, 16))

    assert 16 < between < 25
    assert sweep.promising(LIMIT, BOUNDS, costs(20, 2, 1, 2, 4, 8, 16)) == [1, between, 16, 8]
    assert sweep.promising(LIMIT, SearchBounds(max_batch=16), costs(20, 2, 1, 2, 4, 8, 16)) == [1, 16, 8]


def test_the_line_suggests_nothing_far_from_what_was_measured():
    assert sweep.in_between(1000.0, costs(20, 2, 1, 2, 4)) is None
    assert sweep.in_between(60.0, costs(20, 2, 1, 2, 4, 8, 16)) is None
    assert sweep.in_between(70.0, costs(20, 2, 4)) is None


def test_loads_fill_batches():
    """One per worker and two, as far as the queue goes; two are enough where only throughput counts."""
    setting = ModelSetting(8, workers=2)

    assert sweep.loads(LIMIT, BOUNDS, setting, 1000) == [16, 32]
    assert sweep.loads(FAST, BOUNDS, setting, 1000) == [32]
    assert sweep.loads(LIMIT, BOUNDS, setting, 20) == [16, 20]
    assert sweep.loads(LIMIT, SearchBounds(clients=5), setting, 1000) == [5]


def test_a_limit_is_tried_with_a_window_at_once():
    known = costs(20, 2, 1, 2, 4)

    assert [s.policy for s in sweep.of_size(LIMIT, BOUNDS, 4, known)] == ["adaptive", "window"]
    assert [s.policy for s in sweep.of_size(LIMIT, BOUNDS, 1, known)] == ["adaptive"]
    assert [s.policy for s in sweep.of_size(FAST, BOUNDS, 4, known)] == ["adaptive"]
    assert sweep.window(ModelSetting(4), known).delay_ms == 14


@pytest.mark.parametrize(
    ("policy", "others"), [("adaptive", {"greedy", "window"}), ("window", {"adaptive", "greedy"})]
)
def test_other_policies_include_those_not_chosen(policy, others):
    tried = sweep.other_policies(FAST, ModelSetting(4, policy), costs(20, 2, 1, 2, 4))

    assert others <= {setting.policy for setting in tried}
    assert sweep.other_policies(FAST, ModelSetting(1), Costs()) == []


def test_threads_are_halved_and_doubled():
    of = sweep.other_threads

    assert [s.threads for s in of(SearchBounds(cores=8), ModelSetting(4, workers=2))] == [2, 8]
    assert [s.threads for s in of(SearchBounds(cores=8), ModelSetting(4))] == [4]
    assert of(SearchBounds(cores=1), ModelSetting(4)) == []
    assert of(SearchBounds(cores=8, threads_free=False), ModelSetting(4)) == []


def test_more_workers_are_tried_with_smaller_batches_under_a_limit():
    eight, four = ModelSetting(8, workers=2), ModelSetting(4, workers=2)
    assert sweep.more_workers(FAST, ModelSetting(8), 2) == [eight]
    assert sweep.more_workers(LIMIT, ModelSetting(8), 2) == [eight, four]


def test_the_curve_goes_from_one_client_to_twice_the_choice():
    assert sweep.ladder(1) == [2]
    assert sweep.ladder(6) == [1, 2, 4, 12]
    long = sweep.ladder(500)
    assert (long[0], long[-1]) == (1, 1000)
    assert len(long) <= 6
