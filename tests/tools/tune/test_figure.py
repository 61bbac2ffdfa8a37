import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.ext.console.simulation.figures import percentile
from modelserver.tools.tune.figure import LoadRun, TimedAnswer, batch_costs, fit_line, summed_up


def answers(*latencies, batch="b", size=1, inference_ms=5.0):
    return [
        TimedAnswer(float(i), s, 1.0, inference_ms, f"{batch}{i // size}", size)
        for i, s in enumerate(latencies)
    ]


def test_percentiles_are_values_that_occurred():
    """Nearest rank: the smallest value that so many percent do not exceed."""
    values = [float(n) for n in range(1, 101)]

    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]
    assert percentile([7.0], 99) == 7.0
    assert math.isnan(percentile([], 50))


def test_a_run_is_summed_up():
    figure = summed_up(LoadRun(answers(0.010, 0.020, 0.030, 0.040, size=2), 2.0), clients=3)

    assert (figure.requests, figure.rate, figure.p50_ms, figure.p99_ms) == (4, 2.0, 20.0, 40.0)
    assert (figure.queue_ms, figure.inference_ms, figure.mean_batch) == (1.0, 5.0, 2.0)
    assert (figure.clients, figure.void) == (3, False)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (LoadRun(answers(0.01), 1.0, {"status 503": 2}), "2 x status 503"),
        (LoadRun([], 0.0), "nothing answered"),
    ],
)
def test_run_with_a_failure_or_without_answers_is_void(run, reason):
    figure = summed_up(run)
    assert (figure.void, figure.reason()) == (True, reason)


def test_a_batch_counts_once_for_the_cost_of_its_size():
    many = [a for i in range(40) for a in answers(0.1, 0.1, batch=f"two{i}-", size=2, inference_ms=8.0)]
    rare = answers(0.1, batch="lone", size=1, inference_ms=90.0)

    assert batch_costs([*many, *rare]) == {2: 8.0}
    assert batch_costs([*answers(0.1, inference_ms=3.0), *many[:2]]) == {1: 3.0, 2: 8.0}


@given(
    a=st.floats(0, 1000), b=st.floats(0.01, 100), sizes=st.sets(st.integers(1, 256), min_size=2, max_size=9)
)
def test_a_line_is_recovered(a, b, sizes):
    line = fit_line({n: a + b * n for n in sizes})

    assert line.a_ms == pytest.approx(a, abs=1e-5)
    assert line.b_ms == pytest.approx(b, rel=1e-5, abs=1e-7)
    assert line.r2 == pytest.approx(1.0, abs=1e-6)
    assert line.trusted


@pytest.mark.parametrize(
    ("costs", "expected"),
    [({1: 1.0, 2: 3.0, 3: 2.0}, (1.0, 0.5, 0.25)), ({1: 5.0, 2: 5.0}, (5.0, 0.0, 1.0))],
    ids=["by hand", "equal"],
)
def test_the_squares_of_what_is_left_are_least(costs, expected):
    """The line of equal costs says nothing of how large batches may be; one size has none."""
    line = fit_line(costs)

    assert (line.a_ms, line.b_ms, line.r2) == pytest.approx(expected)
    assert not line.trusted
    assert fit_line({}) is fit_line({4: 10.0}) is None


def test_the_largest_batch_within_a_limit_is_computed():
    line = fit_line({n: 20.0 + 2.0 * n for n in (1, 2, 4)})

    assert [line.largest_within(limit) for limit in (70.0, 69.9, 20.0, 5.0)] == [25, 24, 0, 0]
    assert line.at(25) == pytest.approx(70.0)


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ({1: 22.0, 2: 24.0}, False),
        ({1: 22.0, 2: 24.0, 4: 28.0}, True),
        ({1: 5.0, 2: 9.0, 4: 5.0}, False),
        ({1: 5.0, 2: 5.0, 4: 5.0}, False),
    ],
)
def test_line_is_reported_if_it_explains_enough_sizes(costs, text):
    line = fit_line(costs)
    assert line.worth_telling is text
