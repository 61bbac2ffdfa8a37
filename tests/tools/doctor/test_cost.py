import itertools

import pytest
from tests.tools.doctor.conftest import Model

from modelserver.tools.doctor.doctor import check_cost
from modelserver.tools.doctor.findings import CheckReport


def measured(rows, ms, configured=1):
    """The chart of a model whose batches take so many milliseconds by size."""
    report, model = CheckReport(), Model(lambda bodies: [1 for _ in bodies])
    model.ms = ms
    check_cost(report, model, rows, 8, configured)
    return report


@pytest.mark.parametrize(
    ("ms", "configured", "seen", "advice"),
    [
        (
            lambda size: 10.0 + size,
            1,
            "A row costs 11 ms alone, and 2.25 ms in a batch of 8. A batch of n rows takes 10 + 1·n ms.",
            "Set batchSize: 8 in model-config.yaml, or batch_size=8 at the registration.",
        ),
        (
            lambda size: 2.0 * size,
            8,
            "A row costs 2 ms alone, and 2 ms",
            "Compute all rows of a batch at once",
        ),
        (lambda size: 1.0 + size, 1, "A row costs 2 ms alone", "Set batchSize: 4"),
        (lambda size: 4.0 * size - 3.0, 1, "A row costs 1 ms alone, and 3.62 ms in a batch of 8.", ""),
        (lambda size: 10.0 + size, 8, "", ""),
        (lambda size: 0.1, 1, "", ""),
    ],
)
def test_advice_names_a_batch_size(rows, ms, configured, seen, advice):
    """A size is named that is worth it, unless the model has it; where none is, what would help."""
    report = measured(rows, ms, configured)

    assert bool(report.findings) == bool(seen)
    for each in report.findings:
        assert seen in each.seen
        assert each.instead.startswith(advice)
    assert list(report.figures["cost"]["ms_by_batch"]) == ["1", "2", "4", "8"]


@pytest.mark.parametrize(("factors", "ids"), [((1.0, 1.2, 4.0), []), ((0.97, 1.0, 1.03), ["batch-cost"])])
def test_advice_needs_more_than_noise(rows, factors, ids):
    turns = itertools.cycle(factors)
    report = measured(rows, lambda size: 2.0 * size * next(turns), 8)

    assert [each.id for each in report.findings] == ids
    assert ("cost of batches" in report.left_out) is (not ids)


def test_what_cannot_be_measured(rows):
    report = CheckReport()
    check_cost(report, Model(lambda bodies: [1]), rows, 2, 1)

    assert measured(rows, lambda size: 0.0).left_out == {"cost of batches": "its answers are streamed"}
    assert report.left_out == {"cost of batches": "a batch of 2 rows fails"}
