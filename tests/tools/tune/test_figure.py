"""Answers summed up."""

from __future__ import annotations

import math

from modelserver.engine.simulation.figures import percentile
from modelserver.tools.tune.figure import Answer, Run, batch_costs, summed_up


def answers(*latencies: float, batch: str = "b", size: int = 1, inference_ms: float = 5.0) -> list[Answer]:
    return [
        Answer(float(i), s, 1.0, inference_ms, f"{batch}{i // size}", size) for i, s in enumerate(latencies)
    ]


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank: the smallest value that so many percent do not exceed."""
    values = [float(n) for n in range(1, 101)]

    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]
    assert percentile([7.0], 99) == 7.0
    assert math.isnan(percentile([], 50))


def test_a_run_in_numbers() -> None:
    """Throughput is per second, latencies in ms, the batch is the mean over batches."""
    figure = summed_up(Run(answers(0.010, 0.020, 0.030, 0.040, size=2), 2.0), clients=3)

    assert (figure.requests, figure.rate, figure.p50_ms, figure.p99_ms) == (4, 2.0, 20.0, 40.0)
    assert (figure.queue_ms, figure.inference_ms, figure.mean_batch) == (1.0, 5.0, 2.0)
    assert (figure.clients, figure.void) == (3, False)


def test_one_failure_voids_a_run() -> None:
    """Its reason is kept."""
    figure = summed_up(Run(answers(0.01), 1.0, {"status 503": 2}))

    assert figure.void
    assert figure.reason() == "2 x status 503"


def test_nothing_answered_is_void() -> None:
    """And says so."""
    figure = summed_up(Run([], 0.0))

    assert figure.void
    assert figure.reason() == "nothing answered"


def test_a_batch_counts_once_for_the_cost_of_its_size() -> None:
    """The median over batches, not over answers; batches as rare as accidents are left out."""
    many = [a for i in range(40) for a in answers(0.1, 0.1, batch=f"two{i}-", size=2, inference_ms=8.0)]
    rare = answers(0.1, batch="lone", size=1, inference_ms=90.0)

    assert batch_costs([*many, *rare]) == {2: 8.0}
    assert batch_costs([*answers(0.1, inference_ms=3.0), *many[:2]]) == {1: 3.0, 2: 8.0}
